"""RTP Bleed, RTP Inject, sprays and floods, against the whole: data plane, agent and relay."""
