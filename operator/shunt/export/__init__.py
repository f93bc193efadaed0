"""What the agent tells other systems by itself: call events and quality reports to Homer."""
