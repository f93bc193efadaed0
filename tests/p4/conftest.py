"""Fixtures of the vector tests: the softswitch's, from its own tests."""

from __future__ import annotations

from tests.dataplane.conftest import _client, lab, mismatch, plane, softswitch

__all__ = ["_client", "lab", "mismatch", "plane", "softswitch"]
