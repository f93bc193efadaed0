"""Tests of shunt-mixer from the outside: its control API, and packets on sockets."""
