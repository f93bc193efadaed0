"""Fixtures of the vector tests: the softswitch's, from its own tests."""

from __future__ import annotations

from tests.dataplane.conftest import _opened, lab, plane, strays

__all__ = ["_opened", "lab", "plane", "strays"]
