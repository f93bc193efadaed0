"""Tests of the built-in relay."""
