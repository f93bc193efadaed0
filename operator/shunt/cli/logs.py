"""The log on standard error: lines of text, or one JSON object to a line."""

from __future__ import annotations

import json
import logging
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


def configure(level: str, style: str) -> None:
    """Send the whole process's log to standard error. level: debug, info, warning or error; style: text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if style == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
