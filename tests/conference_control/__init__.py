"""Tests of the control of conferences: model and planner, rows and writer, and real processes in network namespaces."""
