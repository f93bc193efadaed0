"""A moment on the command line: so long ago, or a time."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

_AGO = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Moment(click.ParamType[int]):
    """Unix time from `90s`, `10m`, `2h`, `1d` (ago) or `2026-11-25T14:30` (local time unless it has a zone)."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Whole seconds since 1970."""
        if isinstance(value, int):
            return value
        if match := _AGO.fullmatch(value):
            return max(0, int(time.time()) - int(match[1]) * _SECONDS[match[2]])
        try:
            return max(0, int(datetime.fromisoformat(value).timestamp()))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time before now (90s, 10m, 2h, 1d) nor a date and time (2026-11-25T14:30)", param, ctx)


class Duration(click.ParamType[int]):
    """Seconds from `30s`, `10m` or `1h`."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Whole seconds, 1 to 3600."""
        if isinstance(value, int):
            return value
        match = _AGO.fullmatch(value)
        seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
        if not 1 <= seconds <= 3600:
            self.fail(f"{value!r} is not a time from 1s to 1h (30s, 10m)", param, ctx)
        return seconds
