"""The rtpproxy control protocol as pure functions: codec, error codes, capabilities."""
