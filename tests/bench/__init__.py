"""Tests of the benches' own instruments: what they say must be true before anything is measured with them."""
