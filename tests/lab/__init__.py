"""The lab: network namespaces, real processes and the demo, for the tests and for `make demo`."""
