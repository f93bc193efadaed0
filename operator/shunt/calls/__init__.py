"""The one owner of call state: calls, media lines, legs, streams, and why each stream is where it is."""
