"""The softswitch: the relay table in the Linux kernel, served over BF Runtime."""
