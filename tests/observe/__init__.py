"""Tests of what operators look at: history, diagnosis, metrics, quality, call records, the page."""
