"""What happens to calls, as it happens: one bus that every part reports to, and the history kept from it."""
