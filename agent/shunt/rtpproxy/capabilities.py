"""What the capability dates of VF mean, and which keep-alive a relay allows. Pure functions, no I/O.

Meanings of the dates up to 20230424 are rtpproxy's own; of later ones as measured against rtpproxy 2.2.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

BASIC = 20040107
MULTIPLE_STREAMS = 20050322
VERSION_PARAMETER = 20060704
RESIZE = 20071116
COPY = 20071218
QUERY = 20080403
CODECS = 20081102
NOTIFY = 20081224
AUTOBRIDGE = 20090810
LOAD = 20140323
CONNECT_TIME = 20140617
COUNTERS = 20141004
NEW_PORT = 20150330
RTPA_COUNTERS = 20150420
NOTIFY_SELF = 20150617
TTL_FLAG = 20170313
SUBCOMMANDS = 20191015
STOP_RECORDING = 20200226
TTL_MODIFIER = 20210524
NLOST_COUNTER = 20230205
FUSED_DELETE = 20230314
IPI_COUNTERS = 20230424
TTL_SUBCOMMAND = 20251015

MEANINGS: dict[int, str] = {
    BASIC: "basic protocol: U L D V",
    MULTIPLE_STREAMS: "several media in one call (tag;N), music on hold (P, S)",
    VERSION_PARAMETER: "parameter in the V command",
    RESIZE: "re-packetization, modifier Z",
    COPY: "copying of a stream, command C",
    QUERY: "statistics of a session, command Q",
    CODECS: "codec list in U and L, modifier c",
    NOTIFY: "time-out notification, notify arguments of U (only if the relay was started with -n)",
    AUTOBRIDGE: "automatic bridging, modifier R",
    LOAD: "load in the reply to I",
    CONNECT_TIME: "anchoring of the connect time",
    COUNTERS: "counters by name, commands G and Q",
    NEW_PORT: "a new port for a leg, modifier N",
    RTPA_COUNTERS: "sequence tracking, counters rtpa_*",
    NOTIFY_SELF: "%%CC_SELF%% as the host of a notify socket",
    TTL_FLAG: "session time-out as the modifier t of OpenSIPS (no rtpproxy up to 3.2)",
    SUBCOMMANDS: "sub-commands after &&",
    STOP_RECORDING: "command N stops a recording",
    TTL_MODIFIER: "session time-out as `&& T<seconds>` on U and L (rtpproxy 2.2.1)",
    NLOST_COUNTER: "counter rtpa_nlost",
    FUSED_DELETE: "G fused with D",
    IPI_COUNTERS: "counters longest_ipi, rtpa_jlast, rtpa_jmax, rtpa_javg",
    TTL_SUBCOMMAND: "session time-out as `&& S ttl=<seconds>`, also on Q (rtpproxy 3.2)",
}
"""Date -> what a relay that answers VF with 1 can do."""

OPENSIPS_HANDSHAKE = (
    MULTIPLE_STREAMS, RESIZE, CODECS, AUTOBRIDGE, NOTIFY, QUERY, NOTIFY_SELF, RTPA_COUNTERS, TTL_FLAG, COPY,
    SUBCOMMANDS,
)
"""The dates OpenSIPS 4.1 asks for, in its order; without the first it does not use the relay."""
KAMAILIO_HANDSHAKE = (MULTIPLE_STREAMS, RESIZE, CODECS)
"""The dates Kamailio 5.6 asks for."""

AGENT_HANDSHAKE = (TTL_SUBCOMMAND, TTL_MODIFIER, QUERY, SUBCOMMANDS, NOTIFY)
"""The dates the agent itself asks a relay for."""

KeepAlive = Literal["ttl-subcommand", "ttl-modifier", "lookup"]


def keepalive_method(supported: Mapping[int, bool]) -> KeepAlive:
    """How to keep the session of an offloaded stream alive, from the relay's VF answers (date -> answered 1).

    "ttl-subcommand": `Q … && S ttl=N`; "ttl-modifier": `L … - 0 … && TN`; "lookup": `L … - 0 …` more often than the
    relay's time-out. The first has no side effects on the session, hence the order. A date not asked for counts as no.
    """
    if supported.get(TTL_SUBCOMMAND):
        return "ttl-subcommand"
    if supported.get(TTL_MODIFIER):
        return "ttl-modifier"
    return "lookup"


def may_query(supported: Mapping[int, bool]) -> bool:
    """Whether Q is safe. rtpengine answers Q but corrupts the call's lock (facts section 12), and says no to its VF."""
    return bool(supported.get(QUERY))
