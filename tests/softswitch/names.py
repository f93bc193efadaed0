"""What the served schema, the trace and the configuration call things: the one place that a renaming touches.

A tuple lists the names under which a thing is served, the current one last; the first that a schema has is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

BLOCKLIST = ("softswitch.refused", "softswitch.blocklist")
SOURCE_FILTER = ("softswitch.guarded", "softswitch.source_filter")
GREYLIST = ("softswitch.wary", "softswitch.greylist")
ALLOWLIST = ("softswitch.known", "softswitch.allowlist")

# Fields of `softswitch.quality` and `softswitch.totals`, by the name that tests use.
SOURCE_MISMATCH = ("stray", "source_mismatch")
TOTALS = {
    "source_mismatch_packets": ("stray_packets", "source_mismatch_packets"),
    "blocked_packets": ("refused_packets", "blocked_packets"),
}
# What the programs do with a packet and why, by number, in the words of the trace.
REASONS = (
    "relayed", "not-ip", "not-udp", "ip-options", "fragment", "ttl-expired", "malformed", "no-checksum", "not-unicast", "not-media", "no-entry", "source-mismatch",
    "no-next-hop", "too-big-for-output", "output-cannot-transmit", "no-headroom", "entry-changing", "over-limit", "conference", "blocked", "other-mac",
)  # fmt: skip
FORMER_REASONS = {"stray-source": "source-mismatch", "refused-source": "blocked"}

# The command of another softswitch than this checkout's Python process; it takes the daemon's configuration.
DAEMON = os.environ.get("SHUNT_SOFTSWITCH", "")


def served(names: Iterable[str], among: Iterable[str]) -> str:
    """The name of these that a schema has. Raises KeyError when it has none."""
    there = set(among)
    for name in names:
        if name in there:
            return name
    raise KeyError(f"none of {', '.join(names)} is served")
