"""The shipped Prometheus alerts, evaluated by promtool on series of described scenes."""
