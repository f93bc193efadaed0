"""Tests of the rtpproxy protocol codec, replaying recorded control traffic."""
