"""Conferences on the operator's side: negotiation, calls as they are kept, records, the policy, and what is shown. With real processes: tests/conference_control."""
