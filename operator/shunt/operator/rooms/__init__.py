"""Rooms: conferences that browsers, WHIP and WHEP clients take part in, by way of an edge."""
