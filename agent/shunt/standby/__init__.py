"""Active and standby: who is in charge of a group's calls and data plane, and how the other one takes over."""
