"""Deciding whose packets are a leg's media: guarded latching."""
