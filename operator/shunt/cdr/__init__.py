"""Call detail records: one for every call that ended, as CSV and as JSON lines."""
