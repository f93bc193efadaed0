"""Prometheus metrics: a snapshot of the agent's state at each scrape, and instruments that count events."""
