"""Reader of recorded control traffic: exchanges between SIP servers (or a test client) and relays, SIP milestones.

The recordings lie beside the repository (`shared/traces`); a small selection of lines is in `corpus/`, in the same
formats, so that the tests have something to replay anywhere.

Line formats (TIME is epoch seconds, BYTES a Python bytes literal):
    TIME UDP|TCP SRC > DST --> relay len=N BYTES          command, seen on the wire
    TIME UDP|TCP SRC > DST <-- relay len=N BYTES          reply
    TIME >> BYTES   and   TIME << BYTES                   the same, of a client that speaks to the relay directly
       then recv -> BYTES                                 more of the last reply (streams)
    TIME TCP SRC > DST NOTIFY relay-->proxy len=N BYTES   time-out notification
    NOTIFY-LISTENER TIME recv BYTES                       the same
    TIME SIP SRC > DST FIRST LINE | CSeq: … | SDP         SIP milestone
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
CORPUS = Path(__file__).resolve().parent / "corpus"

_LITERAL = r"""(b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")"""
_WIRE = re.compile(r"(\d+\.\d+) (UDP|TCP) (\S+) > (\S+) (-->|<--) relay len=(\d+) " + _LITERAL)
_DIRECT = re.compile(r"(\d+\.\d+) (>>|<<) " + _LITERAL + r"(.*)")
_NO_REPLY = re.compile(r"(\d+\.\d+) << '<none")
_MORE = re.compile(r"\s+then recv -> " + _LITERAL)
_NOTIFY = re.compile(r"(\d+\.\d+) TCP (\S+) > (\S+) NOTIFY relay-->proxy len=\d+ " + _LITERAL)
_LISTENER = re.compile(r"NOTIFY-LISTENER (\d+\.\d+) recv " + _LITERAL)
_SIP = re.compile(r"(\d+\.\d+) SIP (\S+) > (\S+) ([^|]*?) \| CSeq: (\d+) (\w+) \|\s?(.*)")
_SERVER = re.compile(r"# \[.*\] rtpproxy .*-s (udp|tcp|unix|cunix):")


@dataclass(slots=True)
class Exchange:
    """A command and what came back. Over udp both carry the cookie, as on the wire."""

    time: float
    channel: str
    """Kind and place of the relay's control socket, "udp:127.0.0.1:22222"; "udp:direct" for a test client's own."""
    client: str
    command: bytes
    reply: bytes | None
    line: int

    @property
    def is_stream(self) -> bool:
        """True where there are no cookies."""
        return not self.channel.startswith("udp:")


@dataclass(frozen=True, slots=True)
class Notification:
    """Bytes that a relay sent to a notify socket."""

    time: float
    data: bytes
    line: int


@dataclass(frozen=True, slots=True)
class SipMilestone:
    """One SIP message in passing: where from and to, first line, CSeq, and what the recorder kept of its SDP."""

    time: float
    source: str
    destination: str
    first_line: str
    cseq: int
    method: str
    sdp: str
    line: int


Event = Exchange | Notification | SipMilestone


def trace_files() -> list[Path]:
    """The recordings beside the repository, in order; empty if they are not there."""
    return sorted(TRACES.glob("*.txt")) if TRACES.is_dir() else []


def corpus_files() -> list[Path]:
    """The repository's own selection."""
    return sorted(CORPUS.glob("*.txt"))


def timeline(path: Path) -> list[Event]:
    """Everything in one recording, in the order of the lines; an exchange stands where its command was sent."""
    events: list[Event] = []
    open_by_cookie: dict[tuple, list[Exchange]] = {}
    open_streams: dict[tuple, list[Exchange]] = {}
    direct: Exchange | None = None
    direct_kind = "udp"
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if match := _WIRE.match(line):
            time, protocol, source, destination, arrow, length, literal = match.groups()
            data = ast.literal_eval(literal)
            if len(data) != int(length):
                raise ValueError(f"{path.name}:{number}: {len(data)} bytes, the line says {length}")
            sent = arrow == "-->"
            client, server = (source, destination) if sent else (destination, source)
            channel = f"{protocol.lower()}:{server}"
            if protocol == "UDP":
                waiting = open_by_cookie.setdefault((client, channel, data.split()[0]), [])
            else:
                waiting = open_streams.setdefault((client, channel), [])
            if sent:
                exchange = Exchange(float(time), channel, client, data, None, number)
                events.append(exchange)
                waiting.append(exchange)
            elif waiting:
                # Of two copies with one cookie it is the later that was answered (the first was lost); a stream
                # answers in order.
                waiting.pop(-1 if protocol == "UDP" else 0).reply = data
        elif match := _DIRECT.match(line):
            time, arrow, literal, rest = match.groups()
            data = ast.literal_eval(literal)
            if arrow == ">>":
                if "SEND FAILED" in rest:
                    direct = None
                    continue
                direct = Exchange(float(time), f"{direct_kind}:direct", "direct", data, None, number)
                events.append(direct)
            elif direct is not None and not data.startswith(b"<no reply"):
                direct.reply = data
        elif _NO_REPLY.match(line):
            direct = None
        elif match := _MORE.match(line):
            if direct is not None and direct.reply is not None:
                direct.reply += ast.literal_eval(match.group(1))
        elif match := _NOTIFY.match(line):
            events.append(Notification(float(match.group(1)), ast.literal_eval(match.group(4)), number))
        elif match := _LISTENER.match(line):
            events.append(Notification(float(match.group(1)), ast.literal_eval(match.group(2)), number))
        elif match := _SIP.match(line):
            time, source, destination, first_line, cseq, method, sdp = match.groups()
            events.append(
                SipMilestone(float(time), source, destination, first_line, int(cseq), method, sdp.strip(), number)
            )
        elif match := _SERVER.match(line):
            direct_kind = match.group(1)
    return events


def load(path: Path) -> list[Exchange]:
    """The exchanges of one recording."""
    return [event for event in timeline(path) if isinstance(event, Exchange)]


def load_sip(path: Path) -> list[SipMilestone]:
    """The SIP milestones of one recording."""
    return [event for event in timeline(path) if isinstance(event, SipMilestone)]


def load_notifications(path: Path) -> list[Notification]:
    """The time-out notifications of one recording."""
    return [event for event in timeline(path) if isinstance(event, Notification)]
