"""Conferences without I/O: packets read, layers chosen, trees laid out, numbers rewritten, feedback chosen."""
