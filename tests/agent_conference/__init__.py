"""Conferences of shunt-agent, from outside: real softswitch and agent in namespaces, participants on real sockets."""
