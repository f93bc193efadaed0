"""The operator daemon: REST API, history, call records and Homer reports as a client of the agent's admin API."""
