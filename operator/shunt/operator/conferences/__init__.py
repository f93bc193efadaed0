"""Conferences on the operator's side: the SIP focus, records of participants, a policy of the operator's own, and the REST routes."""
