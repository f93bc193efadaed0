"""The log on standard error: lines of text, or one JSON object to a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime


class _Text(logging.Formatter):
    """Time, level, logger, message; what came from the network cannot start a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in record.message)
        return super().formatMessage(record)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("call_id", "event", "what"):
            if name in record.__dict__:
                line[name] = record.__dict__[name]
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


class _Journal(logging.Formatter):
    """Another formatter's lines with their priorities in front (sd-daemon(3)), so that `journalctl -p err` finds errors."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in self._lines.format(record).splitlines())


def _is_journal() -> bool:
    """Whether standard error is the journal's: systemd names its device and inode (systemd.exec(5)), for a child may have another one."""
    try:
        at = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{at.st_dev}:{at.st_ino}"


def configure(level: str, style: str) -> None:
    """Send the whole process's log to standard error. level: debug, info, warning or error; style: text or json."""
    handler = logging.StreamHandler()
    lines = _Json() if style == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Journal(lines) if _is_journal() else lines)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
