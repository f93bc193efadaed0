"""BF Runtime, both sides: the softswitch's server and the agent's client, over real gRPC on loopback."""
