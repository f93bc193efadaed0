"""End-to-end tests: real SIP calls through a real SIP server, agent, relay and kernel, judged from captures on the phones."""
