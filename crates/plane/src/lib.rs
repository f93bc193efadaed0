//! The data plane as the agent uses it: the one writer of its tables.
