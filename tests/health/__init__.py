"""The judgement of health."""
