"""Copies of SIP messages (HEPv3) and what the agent takes from them: which dialog is being set up or ended."""
