"""Captures on the phones' own interfaces, and what they prove: packets sent, received, lost, and by which way they came.

Nothing here asks the software under test. The lab lowers the TTL of what the relay sends by its own
socket, and not of what the data plane forwards; sequence numbers say what was lost; SIP messages in
the same capture say which relay ports belong to which call and when the call was hung up.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.lab.processes import PORTS, Process
from tests.lab.sipp import address
from tests.lab.topology import RELAYED_TTL, LabError, Topology

_NANO_MAGIC = 0xA1B23C4D
_BLOCK_TIMEOUT = 1.3  # tcpdump's read timeout is 1 s
_LATE_S = 1.0  # how long after a hang-up its call's packets are looked for
_ROW = struct.Struct("<d?HHBHIB?")
_ROW_DTYPE = np.dtype([("time", "<f8"), ("out", "?"), ("own_port", "<u2"), ("relay_port", "<u2"), ("second", "u1"), ("seq", "<u2"), ("ssrc", "<u4"), ("ttl", "u1"), ("bad", "?")])


class Capture:
    """Captures SIP and media of one phone while it lasts: start(), stop(), then media() and messages()."""

    _numbers = itertools.count(1)

    def __init__(self, topology: Topology, work: Path, host: str, *, full: bool = False) -> None:
        """full: keep whole packets, so that UDP checksums are verified (costs more; not for load)."""
        self.host = host
        self._full = full
        name = work.resolve() / f"capture-{next(self._numbers):03d}-{host}"
        self._media_path, self._sip_path = name.with_suffix(".media.pcap"), name.with_suffix(".sip.pcap")
        common = ["tcpdump", "-i", "eth0", "-n", "-Z", "root", "--time-stamp-precision=nano", "-B", "32768"]
        # Without immediate mode the kernel hands packets over in blocks, which is cheaper, and stop() has to wait for the last.
        media = [*common, *(["--immediate-mode", "-s", "0"] if full else ["-s", "96"]), "-w", str(self._media_path), f"udp and portrange {PORTS[0]}-{PORTS[1]}"]
        sip = [*common, "--immediate-mode", "-s", "0", "-w", str(self._sip_path), "udp and port 5060"]
        self._processes = [Process(topology, host, f"tcpdump of {what} at {host}", argv, name.with_suffix(f".{what}.log")) for what, argv in (("media", media), ("sip", sip))]

    def start(self) -> "Capture":
        for process in self._processes:
            process.start()
        for process in self._processes:
            process.await_log("listening on")
        return self

    def stop(self) -> None:
        """End it. Raises LabError if the kernel dropped packets from a capture: its counts would be worth nothing."""
        time.sleep(0.1 if self._full else _BLOCK_TIMEOUT)
        for process in self._processes:
            process.signal(signal.SIGINT)
        for process in self._processes:
            process.wait(10)
            dropped = re.search(r"(\d+) packets dropped by kernel", process.tail())
            if dropped is None or dropped[1] != "0":
                raise LabError(f"{process.name}: the capture is not complete:\n{process.tail()}")

    def media(self) -> np.ndarray:
        """Every packet to or from a relay media port: time (s), out, own_port, relay_port, the header's second byte, seq, ssrc, ttl, bad (wrong checksum)."""
        own = {ipaddress.ip_address(a).packed for a in addresses_of(self.host)}
        rows = bytearray()
        for at, frame in _records(self._media_path):
            rows += _media_row(at, frame, own, self._full)
        return np.frombuffer(bytes(rows), dtype=_ROW_DTYPE)

    def messages(self) -> list["Message"]:
        """Every SIP message, in order."""
        own = {ipaddress.ip_address(a).packed for a in addresses_of(self.host)}
        found = []
        for at, frame in _records(self._sip_path):
            parsed = _udp(frame)
            if parsed is not None:
                source, _, _, _, _, payload, _ = parsed
                message = Message.parse(at, source in own, payload)
                if message is not None:
                    found.append(message)
        return found


def addresses_of(host: str) -> tuple[str, str]:
    """A phone's own IPv4 and IPv6 address."""
    return address(host, 4), address(host, 6)


@dataclass(frozen=True)
class Message:
    """A SIP message as a phone sent (out) or received it."""

    time: float
    out: bool
    start: str
    call_id: str
    cseq: str
    body: str

    @classmethod
    def parse(cls, when: float, out: bool, payload: bytes) -> "Message | None":
        head, _, body = payload.decode(errors="replace").partition("\r\n\r\n")
        start, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        call_id = headers.get("call-id") or headers.get("i")
        if not call_id:
            return None
        return cls(when, out, start, call_id, headers.get("cseq", ""), body)

    @property
    def method(self) -> str:
        """The method of a request, "" of a reply."""
        return "" if self.start.startswith("SIP/2.0") else self.start.split(" ", 1)[0]

    @property
    def status(self) -> int:
        """The status of a reply, 0 of a request."""
        return int(self.start.split(" ", 2)[1]) if self.start.startswith("SIP/2.0") else 0

    @property
    def kind(self) -> str:
        """What tells a message from others of its transaction: its method or status."""
        return self.method or str(self.status)

    @property
    def ports(self) -> list[int]:
        """The ports of the SDP's media lines."""
        return [int(port) for port in re.findall(r"^m=\w+ (\d+)", self.body, re.MULTILINE)]

    @property
    def is_null(self) -> bool:
        """The SDP has the null address: a hold in the way of RFC 2543."""
        return bool(re.search(r"^c=IN (IP4 0\.0\.0\.0|IP6 ::)\s*$", self.body, re.MULTILINE))


@dataclass
class Call:
    """What a call's SIP messages say, from both phones' captures."""

    call_id: str
    caller: str
    callee: str = ""
    relay_ports: dict[str, list[list[int]]] = field(default_factory=dict)  # by phone and media line: the ports it was told to send to, the last one last
    told: dict[tuple[str, int], float] = field(default_factory=dict)  # by phone and such a port: when it was told first
    moved: dict[tuple[str, int], float] = field(default_factory=dict)  # by phone and its new port: when the other phone had the message that named it
    switched_off: dict[int, float] = field(default_factory=dict)  # by media line: when a phone gave it up with port 0
    held: dict[str, list[list[float]]] = field(default_factory=dict)  # by phone: when it signalled a null address, and when the other phone had what took it back
    started: float = 0.0
    answered: bool = False
    ended: float | None = None  # the first BYE, CANCEL or refusal that any phone sent
    how: str = ""  # BYE by caller, BYE by callee, CANCEL, or the status of a refusal


def calls_of(captures: Iterable[Capture]) -> dict[str, Call]:
    """The calls in the captures, by Call-ID."""
    heard = sorted(((m, c.host) for c in captures for m in c.messages()), key=lambda pair: pair[0].time)
    calls: dict[str, Call] = {}
    named: dict[tuple[str, str], set[int]] = {}  # by call and phone: the ports of its own that it has named
    moving: dict[tuple[str, str, str], list[tuple[str, int]]] = {}  # by call, CSeq and kind of message: ports on their way
    resuming: dict[tuple[str, str, str], list[float]] = {}  # by the same: the hold that the message ends
    for message, host in heard:
        call = calls.get(message.call_id)
        if call is None:
            if not (message.method == "INVITE" and message.out):
                continue
            call = calls[message.call_id] = Call(message.call_id, host, started=message.time)
        if not call.callee and message.method == "INVITE" and not message.out:
            call.callee = host
        if not message.out and message.ports:
            known = call.relay_ports.setdefault(host, [])
            known += [[] for _ in range(len(message.ports) - len(known))]
            for line, port in zip(known, message.ports):
                if port:
                    line[:] = [other for other in line if other != port] + [port]
                    call.told.setdefault((host, port), message.time)
            for moved in moving.get((message.call_id, message.cseq, message.kind), []):
                call.moved[moved] = min(call.moved[moved], message.time)
            if (hold := resuming.get((message.call_id, message.cseq, message.kind))) is not None:
                hold[1] = min(hold[1], message.time)
        if message.out:
            for index, port in enumerate(message.ports):
                if port == 0 and call.relay_ports.get(host):
                    call.switched_off.setdefault(index, message.time)
        if message.out and message.ports:
            before = named.setdefault((message.call_id, host), set())
            fresh = [(host, port) for port in message.ports if port and port not in before] if before else []
            before.update(message.ports)
            call.moved |= {moved: float("inf") for moved in fresh}
            moving.setdefault((message.call_id, message.cseq, message.kind), []).extend(fresh)
            holds = call.held.setdefault(host, [])
            if message.is_null:
                holds += [] if holds and holds[-1][1] == float("inf") else [[message.time, float("inf")]]
            elif holds and holds[-1][1] == float("inf"):
                resuming[message.call_id, message.cseq, message.kind] = holds[-1]
        if message.status == 200 and message.cseq.endswith("INVITE"):
            call.answered = True
        if call.ended is not None or not message.out:
            continue
        if message.method in ("BYE", "CANCEL"):
            call.ended, call.how = message.time, "CANCEL" if message.method == "CANCEL" else f"BYE by {'caller' if host == call.caller else 'callee'}"
        elif message.status >= 300 and message.cseq.endswith("INVITE") and not call.answered:
            call.ended, call.how = message.time, str(message.status)
    return calls


@dataclass
class Direction:
    """One direction of one media stream of one call: RTP, or RTCP."""

    call_id: str
    sender: str
    receiver: str
    send_ports: tuple[int, ...]  # the relay ports that the sender sends to; more than one where a re-INVITE or a fork has changed them
    receive_ports: tuple[int, ...]  # the relay ports that it arrives from
    sent: int = 0  # until the call was hung up or the line switched off, without the unreachable, the unsignalled and the held ones
    besides: int = 0  # further ones, also after the hang-up: nobody owes their delivery
    unreachable: int = 0  # sent before the receiver behind a NAT had opened the way by sending: nobody can deliver these
    unsignalled: int = 0  # sent from a new port before the message that names it had gone through: the relay is right not to latch these
    held: int = 0  # sent while the receiver's SDP had a null address: they are for nobody
    received: int = 0  # of these
    duplicates: int = 0
    offloaded: int = 0  # of the received ones: came through the data plane
    bad_checksums: int = 0
    first_sent: float | None = None
    first_offloaded: float | None = None
    last_received: float | None = None


@dataclass
class Account:
    """Sums over all streams of all calls."""

    directions: list[Direction]
    rtcp: list[Direction]

    def _all(self) -> list[Direction]:
        return self.directions + self.rtcp

    @property
    def sent(self) -> int:
        return sum(d.sent for d in self._all())

    @property
    def received(self) -> int:
        return sum(d.received for d in self._all())

    @property
    def lost(self) -> int:
        return self.sent - self.received

    @property
    def offloaded(self) -> int:
        return sum(d.offloaded for d in self._all())

    @property
    def bad_checksums(self) -> int:
        return sum(d.bad_checksums for d in self._all())

    @property
    def unreachable(self) -> int:
        return sum(d.unreachable for d in self._all())

    @property
    def duplicates(self) -> int:
        return sum(d.duplicates for d in self._all())

    def delays_ms(self) -> list[float]:
        """For every offloaded RTP stream: from the first packet of whichever party sent first packet last, to the first packet through the data plane."""
        by_call: dict[str, list[Direction]] = {}
        for direction in self.directions:
            by_call.setdefault(direction.call_id, []).append(direction)
        delays = []
        for streams in by_call.values():
            firsts = [d.first_sent for d in streams if d.first_sent is not None]
            if len(firsts) < 2:
                continue  # one party never sent
            delays += [(d.first_offloaded - max(firsts)) * 1000 for d in streams if d.first_offloaded is not None]
        return delays


def account(captures: list[Capture]) -> tuple[dict[str, Call], Account]:
    """Match what each phone sent with what the other received, call by call, up to the hang-up, or until a media line is switched off.

    Packets on their way when somebody hangs up have nobody to be delivered to; they are not counted.
    """
    calls = calls_of(captures)
    flows = {capture.host: _Flows(capture.media()) for capture in captures}
    directions, rtcp = [], []
    begun: dict[tuple[str, int], list[float]] = {}
    for call in calls.values():
        for end, told in call.told.items():
            begun.setdefault(end, []).append(told)
    for call in calls.values():
        if call.callee not in flows or call.caller not in flows:
            continue
        lines = zip(call.relay_ports.get(call.caller, []), call.relay_ports.get(call.callee, []))
        for index, (caller_sends_to, callee_sends_to) in enumerate(lines):
            until = min(call.switched_off.get(index, float("inf")), call.ended if call.ended is not None else float("inf"))
            for sender, receiver, send, receive in (
                (call.caller, call.callee, caller_sends_to, callee_sends_to),
                (call.callee, call.caller, callee_sends_to, caller_sends_to),
            ):
                for step, into in ((0, directions), (1, rtcp)):
                    taken_again = min((t for port in receive for t in begun[receiver, port] if t > call.told[receiver, port]), default=float("inf"))
                    ports = tuple(port + step for port in send), tuple(port + step for port in receive)
                    direction = _direction(call, flows, sender, receiver, *ports, until, taken_again)
                    if direction.sent:
                        into.append(direction)
    return calls, Account(directions, rtcp)


class _Flows:
    """One phone's media packets by relay port and direction, in time order."""

    def __init__(self, media: np.ndarray) -> None:
        self._rows: dict[tuple[int, bool], np.ndarray] = {}
        if not len(media):
            return
        key = media["relay_port"].astype("i8") * 2 + media["out"]
        order = np.argsort(key, kind="stable")
        ordered = media[order]
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        for part in np.split(ordered, starts[1:]):
            self._rows[int(part["relay_port"][0]), bool(part["out"][0])] = part

    def rows(self, relay_ports: tuple[int, ...], out: bool, since: float, until: float) -> np.ndarray:
        found = []
        for port in relay_ports:
            part = self._rows.get((port, out))
            if part is not None:
                first, last = np.searchsorted(part["time"], (since, until))
                found.append(part[first:last])
        if len(found) < 2:
            return found[0] if found else np.empty(0, _ROW_DTYPE)
        rows = np.concatenate(found)
        return rows[np.argsort(rows["time"], kind="stable")]


def _direction(call: Call, flows: dict[str, _Flows], sender: str, receiver: str, send: tuple[int, ...], receive: tuple[int, ...], until: float, taken_again: float) -> Direction:
    """until: when the stream was given up. taken_again: when the next call began that `receiver` hears from one of the same relay ports."""
    direction = Direction(call.call_id, sender, receiver, send, receive)
    step = send[0] % 2 if send else 0
    # Before that it may have sent to one of these ports in another call, which has just ended.
    told = min((call.told[sender, port - step] for port in send), default=call.started)
    sent = flows[sender].rows(send, True, told, until)
    # SIPp's player sums a packet up, sleeps, and sends it to where the call has moved meanwhile: no loss of ours.
    sent = sent[~sent["bad"]]
    moved = [(port + step, at) for (host, port), at in call.moved.items() if host == sender]
    unsignalled = np.zeros(len(sent), dtype=bool)
    for port, at in moved:
        unsignalled |= (sent["own_port"] == port) & (sent["time"] < at)
    direction.unsignalled = int(unsignalled.sum())
    sent = sent[~unsignalled]
    held = np.zeros(len(sent), dtype=bool)
    for since, resumed in call.held.get(receiver, []):
        held |= (sent["time"] >= since) & (sent["time"] < resumed)
    direction.held = int(held.sum())
    sent = sent[~held]
    if receiver == "natcaller":
        opened = flows[receiver].rows(receive, True, call.started, until)
        reachable = sent["time"] >= (opened["time"][0] if len(opened) else until)
        direction.unreachable = int((~reachable).sum())
        sent = sent[reachable]
    direction.besides = len(flows[sender].rows(send, True, told, until + _LATE_S)) - len(sent)
    if not len(sent):
        return direction
    # A packet may be received just after the hang-up that it was sent before; but a relay may give the port to the
    # next call meanwhile, and SIPp's streams are all alike.
    got = flows[receiver].rows(receive, False, call.started, min(until + _LATE_S, taken_again))
    names = ["second", "seq", "ssrc"]
    sent_keys, got_keys = sent[names].copy(), got[names].copy()
    wanted = np.isin(_packed(got_keys), _packed(sent_keys))
    got = got[wanted]
    unique, index = np.unique(_packed(got_keys[wanted]), return_index=True)
    relayed = RELAYED_TTL - (1 if receiver == "natcaller" else 0)
    through = got[index]["ttl"] > relayed
    direction.sent = len(np.unique(_packed(sent_keys)))
    direction.received = len(unique)
    direction.duplicates = len(got) - len(unique)
    direction.offloaded = int(through.sum())
    direction.bad_checksums = int(got["bad"].sum())
    direction.first_sent = float(sent["time"][0])
    if through.any():
        direction.first_offloaded = float(got[index]["time"][through].min())
    if len(got):
        direction.last_received = float(got["time"][-1])
    return direction


def _packed(keys: np.ndarray) -> np.ndarray:
    return keys["ssrc"].astype("u8") << 24 | keys["seq"].astype("u8") << 8 | keys["second"]


def _records(path: Path) -> Iterable[tuple[float, bytes]]:
    data = path.read_bytes()
    if len(data) < 24 or struct.unpack_from("<I", data)[0] != _NANO_MAGIC:
        raise LabError(f"{path}: not a capture with nanoseconds")
    offset, header = 24, struct.Struct("<IIII")
    while offset + 16 <= len(data):
        seconds, nanos, length, _ = header.unpack_from(data, offset)
        yield seconds + nanos / 1e9, data[offset + 16 : offset + 16 + length]
        offset += 16 + length


def _udp(frame: bytes) -> tuple[bytes, bytes, int, int, int, bytes, int] | None:
    """(source, destination, source port, destination port, TTL, payload as captured, offset of the UDP header)."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and len(frame) >= 42 and frame[23] == 17:
        at = 14 + (frame[14] & 15) * 4
        source, destination, ttl = frame[26:30], frame[30:34], frame[22]
    elif kind == b"\x86\xdd" and len(frame) >= 62 and frame[20] == 17:
        at = 54
        source, destination, ttl = frame[22:38], frame[38:54], frame[21]
    else:
        return None
    source_port, destination_port = struct.unpack_from("!HH", frame, at)
    return source, destination, source_port, destination_port, ttl, frame[at + 8 :], at


def _media_row(when: float, frame: bytes, own: set[bytes], verify: bool) -> bytes:
    parsed = _udp(frame)
    if parsed is None:
        return b""
    source, destination, source_port, destination_port, ttl, payload, at = parsed
    if len(payload) < 12:
        return b""
    _, second, seq, _, ssrc = struct.unpack_from("!BBHII", payload)
    if 192 <= second <= 223:  # RTCP (RFC 5761 section 4): the sender's SSRC and its clock's seconds tell reports apart
        ssrc, seq = struct.unpack_from("!I2xH", payload, 4)
    out = source in own
    bad = verify and not _checksum_right(source, destination, frame[at:])
    own_port, relay_port = (source_port, destination_port) if out else (destination_port, source_port)
    return _ROW.pack(when, out, own_port, relay_port, second, seq, ssrc, ttl, bad)


def _checksum_right(source: bytes, destination: bytes, udp: bytes) -> bool:
    length = struct.unpack_from("!H", udp, 4)[0]
    if length > len(udp) or udp[6:8] == b"\0\0":
        return udp[6:8] == b"\0\0" and len(source) == 4  # none: allowed over IPv4 only
    pseudo = source + destination + struct.pack("!IHBB", length, 0, 0, 17) + udp[:length] + b"\0" * (length & 1)
    if _folded(pseudo) == 0xFFFF:
        return True
    # From a local socket of the edge over veth: the kernel left the sum to a network card that is not
    # there (only the pseudo header's sum is in it), and the receiving kernel knows.
    header = source + destination + struct.pack("!IHBB", length, 0, 0, 17)
    return udp[6:8] == struct.pack("!H", _folded(header))


def _folded(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)
