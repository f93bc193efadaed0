"""The one place that writes the data plane's tables."""
