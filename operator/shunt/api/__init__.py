"""The REST API of the agent: what `shunt calls`, `shunt why` and Prometheus read."""
