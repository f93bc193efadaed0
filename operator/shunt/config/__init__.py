"""The configuration file: its model, and reading it with errors that name key, line and column."""
