"""Reader of recorded control traffic: commands of SIP servers (or a test client) to relays, and what came back.

The recordings are in tests/data/traces, a selection for the codec's own tests in crates/protocols/rtpproxy/tests/data.

Line formats (TIME is epoch seconds, BYTES a Python bytes literal):
    TIME UDP|TCP SRC > DST --> relay len=N BYTES          command, seen on the wire
    TIME UDP|TCP SRC > DST <-- relay len=N BYTES          reply
    TIME >> BYTES   and   TIME << BYTES                   the same, of a client that speaks to the relay directly
       then recv -> BYTES                                 more of the last reply (streams)
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LITERAL = r"""(b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")"""
_WIRE = re.compile(r"(\d+\.\d+) (UDP|TCP) (\S+) > (\S+) (-->|<--) relay len=(\d+) " + _LITERAL)
_DIRECT = re.compile(r"(\d+\.\d+) (>>|<<) " + _LITERAL + r"(.*)")
_NO_REPLY = re.compile(r"(\d+\.\d+) << '<none")
_MORE = re.compile(r"\s+then recv -> " + _LITERAL)
_SERVER = re.compile(r"# \[.*\] rtpproxy .*-s (udp|tcp|unix|cunix):")


@dataclass(slots=True)
class Exchange:
    """A command and what came back. Over udp both carry the cookie, as on the wire."""

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


def selection() -> list[Path]:
    """The repository's own recordings."""
    return sorted((_ROOT / "crates/protocols/rtpproxy/tests/data").glob("*.txt"))


def recordings() -> list[Path]:
    """All recordings, in order."""
    return sorted((_ROOT / "tests/data/traces").glob("*.txt"))


def load(path: Path) -> list[Exchange]:
    """The exchanges of one recording, in the order of their commands."""
    exchanges: list[Exchange] = []
    waiting: dict[tuple[str, ...], list[Exchange]] = {}  # for their replies, by connection or cookie
    direct: Exchange | None = None
    direct_kind = "udp"
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if match := _WIRE.match(line):
            _, protocol, source, destination, arrow, length, literal = match.groups()
            data = ast.literal_eval(literal)
            if len(data) != int(length):
                raise ValueError(f"{path.name}:{number}: {len(data)} bytes, the line says {length}")
            client, server = (source, destination) if arrow == "-->" else (destination, source)
            channel = f"{protocol.lower()}:{server}"
            open_ones = waiting.setdefault((client, channel, data.split()[0] if protocol == "UDP" else b""), [])
            if arrow == "-->":
                exchanges.append(Exchange(channel, client, data, None, number))
                open_ones.append(exchanges[-1])
            elif open_ones:
                # Of two copies with one cookie it is the later that was answered (the first was lost); a stream answers in order.
                open_ones.pop(-1 if protocol == "UDP" else 0).reply = data
        elif match := _DIRECT.match(line):
            _, arrow, literal, rest = match.groups()
            data = ast.literal_eval(literal)
            if arrow == ">>":
                direct = None
                if "SEND FAILED" not in rest:
                    direct = Exchange(f"{direct_kind}:direct", "direct", data, None, number)
                    exchanges.append(direct)
            elif direct is not None and not data.startswith(b"<no reply"):
                direct.reply = data
        elif _NO_REPLY.match(line):
            direct = None
        elif match := _MORE.match(line):
            if direct is not None and direct.reply is not None:
                direct.reply += ast.literal_eval(match.group(1))
        elif match := _SERVER.match(line):
            direct_kind = match.group(1)
    return exchanges
