"""Packet vectors: entries, a packet in, exactly what has to come out and where; the same for every data plane."""
