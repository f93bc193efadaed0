"""Tests of the operator side: configuration, HEP listener, REST API and the `shunt` command."""
