"""What the served schema calls the softswitch's own tables, and the trace its verdicts: the one place that a renaming touches."""

BLOCKLIST = "softswitch.blocklist"
SOURCE_FILTER = "softswitch.source_filter"
GREYLIST = "softswitch.greylist"
ALLOWLIST = "softswitch.allowlist"

# What the programs do with a packet and why, by number, in the words of the trace.
REASONS = (
    "relayed", "not-ip", "not-udp", "ip-options", "fragment", "ttl-expired", "malformed", "no-checksum", "not-unicast", "not-media", "no-entry", "source-mismatch",
    "no-next-hop", "too-big-for-output", "output-cannot-transmit", "no-headroom", "entry-changing", "over-limit", "conference", "blocked", "other-mac",
)  # fmt: skip
