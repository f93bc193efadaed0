"""The edge from the outside: its control API, plain RTP, and real browsers."""
