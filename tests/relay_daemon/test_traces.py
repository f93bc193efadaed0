"""Conformance over the wire: what rtpproxy answered in the recordings, the daemon answers too, port for port.

Ports and addresses differ, so they are matched one to one: where rtpproxy gave a port twice, so must the relay, and where it gave another one,
another one. What differs on purpose is in DELIBERATE. Recordings are replayed without their pauses, so those about time-outs are left out; the
engine's own tests have these.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.relay_daemon.process import Relay, StreamClient
from tests.tools.recordings import load, recordings

# Recorded local address -> one that every host has. There is but one IPv6 address on loopback.
ADDRESSES = {"10.91.1.1": "127.0.0.1", "10.91.2.1": "127.0.0.2", "10.91.3.1": "127.0.0.3", "fd91:1::1": "::1", "fd91:2::1": "::1"}
_LEFT_OUT = {
    "20_caps_rtpproxy_221": "rtpproxy 2.2.1; its answers to VF are others than 3.2's",
    "25": "rtpproxy 2.2.1; the relay follows 3.2",
    "15": "the recorded agent's own experiments with rtpproxy's time-out, against media that is not replayed",
    "02b": "automatic bridging by the recorded host's routes",
    "23": "time-outs",
    "24": "time-outs",
}
FILES = [
    path for path in recordings()
    if "rtpengine" not in path.name and re.match(r"(0[0-9]|1[0-9]|2[0-9]|4[0-35-9])", path.name) and not path.name.startswith(tuple(_LEFT_OUT))
]  # fmt: skip
_BRIDGED = re.compile(rb"[UL]\w*R10\.91\.", re.IGNORECASE)  # by the recorded host's routes

# (part of the file's name, part of the command) -> why the answer is another one.
DELIBERATE = {
    ("20_caps", b"VF 20071116"): "resizing is not done, so it is not claimed",
    ("20_caps", b"VF 20071218"): "copying is not done",
    ("20_caps", b"VF 20081224"): "notices can always be sent",
    ("20_caps", b"VF 20140617"): "connect times are not anchored",
    ("20_caps", b"VF 20150420"): "sequence numbers are not tracked in user space: zeros would be untrue",
    ("20_caps", b"VF 20170313"): "modifier t works",
    ("20_caps", b"VF 20191015"): "OpenSIPS would conclude that DTMF can be caught",
    ("20_caps", b"VF 20200226"): "nothing is recorded",
    ("20_caps", b"VF 20210524"): "sub-command T works",
    ("20_caps", b"VF 20230205"): "no rtpa_nlost",
    ("20_caps", b"VF 20230314"): "G and D are not fused",
    ("20_caps", b"VF 20230424"): "no longest_ipi and jitter counters",
    ("20_caps", b"VF 20250523"): "copying is not done",
    ("20_caps", b"VF 20260306"): "addresses have no labels",
    ("20_caps", b"VF 20260309"): "copying is not done",
    ("handshake", b"VF 20071116"): "resizing is not done, so it is not claimed",
    ("handshake", b"VF 20071218"): "copying is not done",
    ("handshake", b"VF 20150420"): "sequence numbers are not tracked",
    ("handshake", b"VF 20170313"): "modifier t works",
    ("handshake", b"VF 20191015"): "OpenSIPS would conclude that DTMF can be caught",
    ("handshake", b"VF 20081224"): "notices can always be sent",
    ("21_direct", b"ag13 "): "counters of sequence tracking and longest_ipi are refused (E62) rather than shown as 0",
    ("21_direct", b"ag22 "): "counters of sequence tracking are refused (E68)",
    ("21_direct", b"ag30 "): "modifier t works",
    ("21_direct", b"ag41 "): "notices can be sent",
    ("21_direct", b"RETR1 D callq"): "a repetition is the same text too: another command with that cookie is executed",
    ("21_direct", b"ag80 "): "callq was deleted by the above, callw made by ag41",
    ("21_direct", b"ag82 "): "as ag80",
    ("21_direct", b"ag47 "): "the relay's count of repetitions is the same but for RETR1 D",
}


def _deliberate(path: Path, command: bytes) -> bool:
    # Recording 16 has the handshake in it, as the tcp socket was recorded whole.
    name = path.name + (" handshake" if path.name.startswith("16_") else "")
    return any(part in name and text in command for part, text in DELIBERATE)


def _local(command: bytes) -> bytes:
    """The command with modifier l's address exchanged for its stand-in."""
    return re.sub(rb"^([ULul]\w*?l)(10\.91\.\d\.1) ", lambda m: m.group(1) + ADDRESSES[m.group(2).decode()].encode() + b" ", command)


class Ports:
    """The one-to-one relation between recorded and our ports of one call."""

    def __init__(self) -> None:
        self.ours: dict[tuple[bytes, bytes, bytes], tuple[bytes, ...]] = {}  # by call-id, port and address
        self._before: dict[bytes, int] = {}  # by call-id how many there were when a part of it was deleted last

    def deleted(self, call_id: bytes) -> None:
        """From now on the relays may give the call a port again that it has had: chance, and not the same in both."""
        self._before[call_id] = sum(call == call_id for call, _, _ in self.ours)

    def check(self, call_id: bytes, recorded: bytes, got: bytes) -> None:
        theirs, mine = recorded.split(), got.split()
        assert len(theirs) == len(mine), (recorded, got)
        for a, b in zip(theirs, mine):
            if a == b"&&" or b == b"&&":
                assert a == b
        shape = [ADDRESSES.get(w.decode(), w.decode()) for w in theirs]
        for i, word in enumerate(shape):
            if word.isdigit() and word not in ("0", "6"):
                # The same number at two addresses is two ports.
                address = tuple(mine[i + 1 : i + 2])
                known = self.ours.setdefault((call_id, theirs[i], *(theirs[i + 1 : i + 2] or [b""])), (mine[i], *address))
                assert known == (mine[i], *address), f"{call_id!r}: recorded port {word} was {known!r}, is {mine[i]!r}"
                assert int(mine[i]) % 2 == 0 and 36000 <= int(mine[i]) <= 36999
            else:
                assert word == mine[i].decode(), (recorded, got)
        used = [v for (call, _, _), v in self.ours.items() if call == call_id][self._before.get(call_id, 0) :]
        assert len(used) == len(set(used)), f"{call_id!r}: two recorded ports are one of ours"


def _compare(ports: Ports, command: bytes, recorded: bytes, got: bytes) -> None:
    verb = command[:1].upper()
    if recorded[:1] == b"E" or recorded == b"0" or got[:1] == b"E" or got == b"0":
        assert got == recorded
        if verb == b"D":
            ports.deleted(command.split()[1])
    elif verb in (b"U", b"L"):
        ports.check(command.split()[1], recorded, got)
    elif verb == b"Q":
        # Counts differ, as media is not replayed; names and the number of values must not.
        assert re.sub(rb"[0-9.]+", b"0", got) == re.sub(rb"[0-9.]+", b"0", recorded)
    elif verb == b"I":
        pattern = rb"(packets \w+|average load): [0-9.]+"
        assert re.sub(pattern, b"", got) == re.sub(pattern, b"", recorded)
    else:
        assert got == recorded


def _addresses(path: Path) -> list[str]:
    line = re.search(r"rtpproxy -f .*", path.read_text(errors="replace"))
    if line is None:
        return ["127.0.0.1"]
    addresses = [ADDRESSES[address] for address in re.search(r"-l (\S+)", line.group())[1].split("/")]
    if six := re.search(r"-6 (?:/|\w+@)?(\S+)", line.group()):
        addresses.append(ADDRESSES[six[1]])
    return addresses


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recording(path: Path) -> None:
    ports, channel, compared = Ports(), None, 0
    with Relay(listen=["udp:127.0.0.1:0", "tcp:127.0.0.1:0"], addresses=_addresses(path), ports="36000-36999", quarantine=0.0) as relay:
        stream = StreamClient(relay.addresses[1])
        for exchange in load(path):
            if exchange.reply is None:
                continue
            if exchange.is_stream:
                body, recorded = exchange.command.rstrip(b"\n"), exchange.reply.rstrip(b"\n")
                if b"\n" in body:
                    continue
                if exchange.channel != channel:
                    # Recording 26 starts a new rtpproxy for each kind of socket.
                    ports, channel = Ports(), exchange.channel
                    relay.ask("X")
                got = stream.ask(_local(body).decode("latin-1")).encode()
            else:
                cookie, blank, body = exchange.command.partition(b" ")
                reply = relay.udp.send(cookie + blank + _local(body)).rstrip(b"\n")
                recorded = exchange.reply.rstrip(b"\n")
                if body.strip():
                    got, recorded, body = reply.partition(b" ")[2], recorded.partition(b" ")[2], body.rstrip(b"\n")
                else:
                    got = reply
            if _deliberate(path, exchange.command) or _BRIDGED.match(body):
                continue
            try:
                _compare(ports, body, recorded, got)
            except AssertionError as error:
                raise AssertionError(f"{path.name}:{exchange.line}: {exchange.command!r}: {recorded!r} was answered {got!r}") from error
            compared += 1
        stream.close()
    assert compared > 0


def test_deliberate_differences_are_real() -> None:
    """Each entry of DELIBERATE stands for at least one command of a recording."""
    commands = [(f.name, e.command) for f in FILES for e in load(f)]
    for name, text in DELIBERATE:
        assert any(name in file and text in command for file, command in commands), (name, text)
