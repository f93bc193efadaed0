"""Events of calls as lines of the log."""

from __future__ import annotations

import logging

from shunt.events.bus import LEARN, SIP, Event
from shunt.events.view import one_line

log = logging.getLogger("shunt.call")


def log_event(event: Event) -> None:
    """Subscriber of the bus: what comes in any number (packets, SIP messages) at debug, the rest at info."""
    if not event.call_id:
        return
    level = logging.DEBUG if event.kind in (LEARN, SIP) else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "%s: %s", event.call_id, one_line(event), extra={"call_id": event.call_id, "event": event.kind, "what": event.what})
