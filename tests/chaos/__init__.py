"""A data plane that misbehaves: the agent ends up in step with it all the same."""
