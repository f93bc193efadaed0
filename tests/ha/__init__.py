"""Restart, take-over, draining: what happens when an agent, its store or its data plane goes away."""
