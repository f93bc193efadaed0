"""Speech quality from what the data plane measured: the E-model, the codecs it knows, and when it must be silent. No I/O."""
