"""Tests of the control sockets, on real sockets."""
