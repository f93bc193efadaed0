"""Shunt: takes the media of SIP calls off the relay server."""

__version__ = "0.2.0"
