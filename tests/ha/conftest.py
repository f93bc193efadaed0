"""Fixtures of the tests of pairs: the SIP server and the relay, chosen as in the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import parts

__all__ = ["parts"]
