"""Tests of replication: conference packets through the kernel, and the tables that say what becomes of them."""
