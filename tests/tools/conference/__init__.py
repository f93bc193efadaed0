"""Media packets and sequence rewriting in Python: what tests and benches send, read, and hold the data planes against."""
