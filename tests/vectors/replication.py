"""The vectors of replication: two meetings in a tree, layers, hostile header extensions; which copies leave, and that nothing else does.

The scene is the relay's (model.py). What is sent to the relay's ports from 40000 on is no media of a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from shunt.net import Endpoint, FiveTuple
from tests.vectors.model import HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_RA, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, TO_A, TO_B, NextHop, Port, added, ep

DEPENDENCY_DESCRIPTOR = 1
EXTENSION = 12
TREE, LAYER_TREE, EMPTY_TREE = 10, 20, 30
FIRST, SECOND = 1, 2  # the L1 XIDs of the two meetings
BEHIND_A, BEHIND_NOTHING = 1, 2  # L2 XIDs
AUDIO, OTHERS, VIDEO = 0x000101, 0x000202, 0xABCDEF  # numbers of streams
AV1 = 7  # a row set of `layer`


@dataclass(frozen=True)
class Stream:
    """A row of `conference` or `conference6`: names as in docs/replication.md."""

    key: FiveTuple
    ssrc: int
    mgid: int
    stream: int
    l1_xid: int = 0
    rid: int = 0
    l2_xid: int = 0
    to_agent: int = 0
    trees: int = 0
    layers: int = 0
    extension: int = 0
    descriptor: int = 0


@dataclass(frozen=True)
class Receiver:
    """A participant: its RID, the port that it is behind, and a row of `copy` for each number of a stream that it gets."""

    rid: int
    hop: NextHop
    meeting: int
    out: Endpoint
    here: Endpoint


ALICE = Receiver(2, TO_A, FIRST, ep(f"{RELAY_A4}:40002"), ep(f"{HOST_A4}:7002"))
BOB = Receiver(4, TO_B, FIRST, ep(f"{RELAY_B4}:40004"), ep(f"{HOST_B4}:7004"))
CAROL = Receiver(6, TO_B, FIRST, ep(f"[{RELAY_B6}]:40006"), ep(f"[{HOST_B6}]:7006"))
DAVE = Receiver(8, TO_A, FIRST, ep(f"[{RELAY_A6}]:40008"), ep(f"[{HOST_A6}]:7008"))
GRACE = Receiver(10, TO_A, FIRST, ep(f"{RELAY_A4}:40011"), ep(f"{HOST_A4}:7011"))
ERIN = Receiver(3, TO_A, SECOND, ep(f"{RELAY_A4}:40003"), ep(f"{HOST_A4}:7003"))
FRANK = Receiver(5, TO_B, SECOND, ep(f"{RELAY_B4}:40005"), ep(f"{HOST_B4}:7005"))
# In the tree, and without a row of `copy`.
NOBODY = Receiver(9, TO_B, FIRST, ep(f"{RELAY_B4}:40009"), ep(f"{HOST_B4}:7009"))
RECEIVERS = {AUDIO: [ALICE, BOB, CAROL, DAVE], OTHERS: [ERIN, FRANK], VIDEO: [ALICE, BOB, GRACE, CAROL, DAVE]}
# Members of each tree, in halves by meeting. The trees of layers 0, 1 and 2 follow each other.
TREES = {
    TREE: [ALICE, BOB, CAROL, DAVE, ERIN, FRANK, NOBODY],
    LAYER_TREE: [ALICE, BOB, GRACE, CAROL, DAVE], LAYER_TREE + 1: [ALICE, BOB, CAROL], LAYER_TREE + 2: [BOB],
    EMPTY_TREE: [],
}  # fmt: skip
PRUNES = {BEHIND_A: [Port.A], BEHIND_NOTHING: []}
# Chromium's AV1 with three temporal layers, and the ids of the next structure, after a change of resolution.
LAYERS = {(AV1, offset + template): layer for offset in (0, 5) for template, layer in enumerate((0, 0, 1, 2, 2))}


def _stream(src: str, dst: str, ssrc: int, mgid: int, stream: int, **more: int) -> Stream:
    return Stream(FiveTuple(ep(src), ep(dst)), ssrc, mgid, stream, **more)


_ALICES = {"l1_xid": SECOND, "rid": ALICE.rid, "l2_xid": BEHIND_A}
_LAYERED = {"layers": AV1, "extension": EXTENSION, "descriptor": DEPENDENCY_DESCRIPTOR}
ALICES = _stream(f"{HOST_A4}:7002", f"{RELAY_A4}:40002", 0x11110001, TREE, AUDIO, **_ALICES)
ALICES_TOO = _stream(f"{HOST_A4}:7002", f"{RELAY_A4}:40002", 0x11110002, TREE, AUDIO, to_agent=1, **_ALICES)
ERINS = _stream(f"{HOST_A4}:7003", f"{RELAY_A4}:40003", 0x11110001, TREE, OTHERS, l1_xid=FIRST, rid=ERIN.rid, l2_xid=BEHIND_A)
DAVES = _stream(f"[{HOST_A6}]:7008", f"[{RELAY_A6}]:40008", 0x11110003, TREE, AUDIO, l1_xid=SECOND, rid=DAVE.rid, l2_xid=BEHIND_A)
# Its L2 XID has no ports: the sender hears itself.
ECHO = _stream(f"{HOST_A4}:7002", f"{RELAY_A4}:40002", 0x11110004, TREE, AUDIO, l1_xid=SECOND, rid=ALICE.rid, l2_xid=BEHIND_NOTHING)
UNHEARD = _stream(f"{HOST_A4}:7002", f"{RELAY_A4}:40002", 0x11110005, EMPTY_TREE, AUDIO, **_ALICES)
CAMERA = _stream(f"{HOST_A4}:7010", f"{RELAY_A4}:40010", 0x22220001, LAYER_TREE, VIDEO, trees=3, **_LAYERED)
CAMERA_TWO_TREES = _stream(f"{HOST_A4}:7010", f"{RELAY_A4}:40010", 0x22220002, LAYER_TREE, VIDEO, trees=2, **_LAYERED)
CAMERA_NO_TREES = _stream(f"{HOST_A4}:7010", f"{RELAY_A4}:40010", 0x22220003, LAYER_TREE, VIDEO, trees=0, **_LAYERED)
CAMERA_UNREAD = _stream(f"{HOST_A4}:7010", f"{RELAY_A4}:40010", 0x22220004, LAYER_TREE, VIDEO, trees=3, layers=AV1, extension=EXTENSION)
CAMERA_ID_3 = _stream(f"{HOST_A4}:7010", f"{RELAY_A4}:40010", 0x22220005, LAYER_TREE, VIDEO, trees=3, layers=AV1, extension=3, descriptor=DEPENDENCY_DESCRIPTOR)
CAMERA_6 = _stream(f"[{HOST_A6}]:7010", f"[{RELAY_A6}]:40010", 0x22220001, LAYER_TREE, VIDEO, trees=3, **_LAYERED)
STREAMS = [ALICES, ALICES_TOO, ERINS, DAVES, ECHO, UNHEARD, CAMERA, CAMERA_TWO_TREES, CAMERA_NO_TREES, CAMERA_UNREAD, CAMERA_ID_3, CAMERA_6]


@dataclass(frozen=True)
class Replicated:
    """A packet in on port A, and the receivers whose copies leave; no other frame may.

    passed: it is no conference's packet: a switch routes it on, the softswitch hands it to its kernel. bare: over IPv4 without a
    UDP checksum; error: by how much that is off, in one's complement. switch_to: whom a switch's copies go to, where that
    differs, with the reason in `why`; receivers of the other IP version get none from a switch in any case.
    """

    name: str
    stream: Stream
    payload: bytes
    to: list[Receiver] = field(default_factory=list)
    to_agent: bool = False
    passed: bool = False
    tag: int = 0
    bare: bool = False
    error: int = 0
    switch_to: list[Receiver] | None = None
    why: str = ""

    @property
    def on_switch(self) -> list[Receiver]:
        chosen = self.to if self.switch_to is None else self.switch_to
        return [receiver for receiver in chosen if receiver.here.version == self.stream.key.src.version]

    @property
    def frame(self) -> bytes:
        """The frame that goes in."""
        tag = Dot1Q(vlan=self.tag) if self.tag else None
        return self._made(self.stream.key, MAC_A, MAC_RA, tag, 64)

    def copy(self, receiver: Receiver) -> bytes:
        """The frame that a receiver gets."""
        return self._made(FiveTuple(receiver.out, receiver.here), receiver.hop.src_mac, receiver.hop.dst_mac, None, 63)

    def _made(self, flow: FiveTuple, src_mac: str, dst_mac: str, tag: Packet | None, ttl: int) -> bytes:
        across = flow.src.version != self.stream.key.src.version
        if flow.src.version == 4:
            header: Packet = IP(src=flow.src.ip, dst=flow.dst.ip, ttl=ttl, flags="DF", id=0 if across else 7, tos=0xB8)
        else:
            header = IPv6(src=flow.src.ip, dst=flow.dst.ip, hlim=ttl, tc=0xB8)
        without = {"chksum": 0} if self.bare and flow.src.version == 4 else {}
        upper = header / UDP(sport=flow.src.port, dport=flow.dst.port, **without) / Raw(self.payload)
        frame = bytearray(bytes(Ether(src=src_mac, dst=dst_mac) / (tag / upper if tag else upper)))
        if self.error:
            at = (34 if flow.src.version == 4 else 54) + 6 + (4 if tag else 0)
            frame[at : at + 2] = added(int.from_bytes(frame[at : at + 2], "big"), self.error).to_bytes(2, "big")
        return bytes(frame)


Elements = Iterable[tuple[int, bytes]]


def one_byte(elements: Elements) -> bytes:
    """Elements of the one-byte form; id 0 without data is a byte of padding."""
    return b"".join(bytes([number << 4 | len(data) - 1]) + data if data else b"\0" for number, data in elements)


def two_byte(elements: Elements) -> bytes:
    """Elements of the two-byte form; id 0 is a byte of padding."""
    return b"".join(bytes([number, len(data)]) + data if number else b"\0" for number, data in elements)


def rtp(
    stream: Stream, extension: bytes | None = None, *, profile: int = 0xBEDE, words: int | None = None, first: int = 0x80, kind: int = 96, sources: bytes = b"", payload: bytes = bytes(range(64))
) -> bytes:
    """An RTP packet of a stream, with the extension's area filled up to whole words."""
    first |= 0x10 if extension is not None else 0
    header = bytes([first, kind]) + bytes.fromhex("123400000140") + stream.ssrc.to_bytes(4, "big") + sources
    if extension is not None:
        area = extension + bytes(-len(extension) % 4)
        header += profile.to_bytes(2, "big") + (len(area) // 4 if words is None else words).to_bytes(2, "big") + area
    return header + payload


def descriptor(template: int, *, structure: bool = False) -> bytes:
    """A dependency descriptor: the mandatory fields, and the beginning of a template structure."""
    return bytes([0xC0 | template, 0x12, 0x34]) + (b"\x80" + bytes(range(1, 20)) if structure else b"")


EVERYBODY = [ALICE, BOB, GRACE, CAROL, DAVE]
BY_LAYER = [EVERYBODY, [ALICE, BOB, CAROL], [BOB]]
# What Chromium sends beside the descriptor.
BESIDE = [(2, b"abc"), (4, b"\1\2"), (8, b"\3\4\5"), (7, b"\6"), (9, b"\7\x08\x09\x0a")]


def _layered(name: str, layer: int, extension: bytes, stream: Stream = CAMERA, **more: object) -> Replicated:
    how = {key: more.pop(key) for key in ("profile", "words", "first", "kind", "sources", "payload") if key in more}
    return Replicated(name, stream, rtp(stream, extension, **how), BY_LAYER[layer], **more)  # type: ignore[arg-type]


def _templates() -> list[Replicated]:
    return [_layered(f"template {template}", layer, one_byte([(EXTENSION, descriptor(template))])) for (_, template), layer in LAYERS.items()]


def _positions() -> list[Replicated]:
    """The descriptor at every place among six elements, in both forms."""
    found = []
    others = [(n, bytes(range(n))) for n in (1, 2, 4, 5, 6)]
    for place in range(6):
        elements = [*others[:place], (EXTENSION, descriptor(3)), *others[place:]]
        found.append(_layered(f"element {place + 1} of six, one-byte form", 2, one_byte(elements)))
        found.append(_layered(f"element {place + 1} of six, two-byte form", 2, two_byte(elements), profile=0x100F))
    return found


def _lengths() -> list[Replicated]:
    """Behind an element of every length that can be stepped over."""
    found = [_layered(f"behind {size} bytes, one-byte form", 2, one_byte([(1, bytes([0xC3]) * size), (EXTENSION, descriptor(3))])) for size in range(1, 17)]
    sizes = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 20, 24, 28, 31)
    return found + [_layered(f"behind {size} bytes, two-byte form", 2, two_byte([(1, bytes([0xC3]) * size), (EXTENSION, descriptor(3))]), profile=0x1000) for size in sizes]


VECTORS = [
    Replicated("the first meeting: all but the sender and the other meeting", ALICES, rtp(ALICES), [BOB, CAROL, DAVE]),
    Replicated("the second meeting in the same tree", ERINS, rtp(ERINS), [FRANK]),
    Replicated("an IPv6 sender, receivers of both versions", DAVES, rtp(DAVES), [ALICE, BOB, CAROL]),
    Replicated("without a port in its L2 XID's set a sender hears itself", ECHO, rtp(ECHO), [ALICE, BOB, CAROL, DAVE]),
    Replicated("to the agent too", ALICES_TOO, rtp(ALICES_TOO), [BOB, CAROL, DAVE], to_agent=True),
    Replicated("a tree without members", UNHEARD, rtp(UNHEARD)),
    Replicated("the tag is taken off", ERINS, rtp(ERINS), [FRANK], tag=5),
    Replicated("a wrong checksum stays wrong", ERINS, rtp(ERINS), [FRANK], error=0x0101),
    Replicated("no checksum stays none", ECHO, rtp(ECHO), [ALICE, BOB, CAROL, DAVE], bare=True),
    Replicated("payload of an odd length", ALICES, rtp(ALICES, payload=bytes(range(33))), [BOB, CAROL, DAVE]),
    Replicated("the shortest packet", ERINS, rtp(ERINS, payload=b""), [FRANK]),
    Replicated("RTCP is not replicated", ALICES, rtp(ALICES, kind=200), passed=True),
    Replicated("another version of RTP", ALICES, rtp(ALICES, first=0x40), passed=True),
    Replicated("an SSRC without a row", Stream(ALICES.key, 0x99, 0, 0), rtp(Stream(ALICES.key, 0x99, 0, 0)), passed=True),
    Replicated("an address without a row", Stream(FiveTuple(ep(f"{HOST_A4}:7999"), ALICES.key.dst), ALICES.ssrc, 0, 0), rtp(ALICES), passed=True),
    Replicated("too short for RTP", ALICES, rtp(ALICES)[:11], passed=True),
    *_templates(),
    *_positions(),
    *_lengths(),
    _layered("a template without a row is everybody's", 0, one_byte([(EXTENSION, descriptor(40))])),
    _layered("an IPv6 sender's layers", 1, one_byte([*BESIDE, (EXTENSION, descriptor(2))]), CAMERA_6),
    _layered("another session's id", 2, one_byte([(EXTENSION, descriptor(0)), (3, descriptor(4))]), CAMERA_ID_3),
    _layered("the last tree is for all higher layers", 1, one_byte([(EXTENSION, descriptor(3))]), CAMERA_TWO_TREES),
    _layered("no trees are one", 0, one_byte([(EXTENSION, descriptor(3))]), CAMERA_NO_TREES),
    _layered("a stream whose descriptor is not read", 0, one_byte([(EXTENSION, descriptor(3))]), CAMERA_UNREAD),
    _layered("a template structure goes to the agent, two-byte form", 0, two_byte([(4, b"\1\2"), (EXTENSION, descriptor(0, structure=True)[:23]), (8, b"\3")]), profile=0x1000, to_agent=True),
    _layered("a template structure goes to the agent, one-byte form", 0, one_byte([(EXTENSION, descriptor(0, structure=True)[:16])]), to_agent=True),
    _layered("a longer descriptor without a structure", 2, one_byte([(EXTENSION, descriptor(3) + b"\x40"), (8, b"\x80")])),
    _layered("what follows a short descriptor is no structure", 2, one_byte([(EXTENSION, descriptor(3)), (8, b"\xff")])),
    _layered("behind padding", 2, b"\0\0\0" + one_byte([(1, b"\1"), (0, b""), (EXTENSION, descriptor(3))])),
    _layered("behind padding, two-byte form", 2, b"\0" + two_byte([(1, b"\1"), (0, b""), (EXTENSION, descriptor(3))]), profile=0x1000),
    _layered("padding that has a length", 2, b"\x02\xc3\xc3\xc3" + one_byte([(EXTENSION, descriptor(3))])),
    _layered("two with the same id: the first counts", 1, one_byte([(EXTENSION, descriptor(2)), (EXTENSION, descriptor(3))])),
    _layered("id 15 ends the one-byte form", 0, b"\xf0\0" + one_byte([(EXTENSION, descriptor(3))])),
    _layered("id 15 is one as others in the two-byte form", 2, two_byte([(15, b"\1"), (EXTENSION, descriptor(3))]), profile=0x1000),
    _layered("ids beyond 14 in the two-byte form", 2, two_byte([(0x10 | EXTENSION, descriptor(2)), (EXTENSION << 4, descriptor(2)), (EXTENSION, descriptor(3))]), profile=0x1000),
    _layered("a descriptor of two bytes is none", 0, one_byte([(EXTENSION, b"\xc3\1")])),
    _layered("a descriptor of two bytes is none, two-byte form", 0, two_byte([(EXTENSION, b"\xc3\1")]), profile=0x1000),
    _layered("a descriptor of no bytes is none", 0, two_byte([(EXTENSION, b"")]), profile=0x1000),
    _layered("the descriptor goes beyond the extension", 0, bytes([EXTENSION << 4 | 7, 0xC3, 0x12, 0x34])),
    _layered("the descriptor goes beyond the extension, two-byte form", 0, bytes([1, 1, 1, EXTENSION, 3, 0xC3, 0x12, 0x34]), profile=0x1000, words=1),
    _layered("an element behind the descriptor goes beyond the extension", 2, one_byte([(EXTENSION, descriptor(3))]) + b"\x1f\1\1\1"),
    _layered("the descriptor lies behind the extension", 0, one_byte([(1, b"\1\1\1")]), payload=one_byte([(EXTENSION, descriptor(3))]) + bytes(20)),
    _layered("an extension of no words", 0, b"", payload=one_byte([(EXTENSION, descriptor(3))]) + bytes(20)),
    _layered("the extension is longer than the datagram", 0, one_byte([(EXTENSION, descriptor(3))]), words=30, payload=bytes(12)),
    _layered("the extension is 65,535 words long", 0, one_byte([(EXTENSION, descriptor(3))]), words=0xFFFF),
    _layered("the extension ends with the datagram", 2, one_byte([(EXTENSION, descriptor(3))]), payload=b""),
    _layered("an extension of another kind", 0, one_byte([(EXTENSION, descriptor(3))]), profile=0xBEDF),
    _layered("an extension of another kind, nearly the two-byte form", 0, two_byte([(EXTENSION, descriptor(3))]), profile=0x1010),
    Replicated("the extension bit and nothing behind it", CAMERA, rtp(CAMERA, first=0x90, payload=b""), EVERYBODY),
    Replicated("half an extension header", CAMERA, rtp(CAMERA, first=0x90, payload=b"\xbe\xde"), EVERYBODY),
    _layered("the seventh element", 2, one_byte([(1, b"\1")] * 6 + [(EXTENSION, descriptor(3))]), switch_to=EVERYBODY, why="the parser reads six elements"),
    _layered("the seventh element goes beyond the extension", 2, one_byte([(EXTENSION, descriptor(3))] + [(1, b"\1\2")] * 5) + b"\x1f\1\1"),
    _layered("the sixth element goes beyond the extension", 0, one_byte([(1, b"\1\2")] * 5) + bytes([EXTENSION << 4 | 3, 0xC3, 0x12, 0x34]) , words=4),
    _layered("behind an element of 32 bytes", 2, two_byte([(1, bytes(32)), (EXTENSION, descriptor(3))]), profile=0x1000, switch_to=EVERYBODY, why="the parser steps over 31 bytes"),
    _layered("an extension of 32 words", 2, one_byte([(EXTENSION, descriptor(3))]) + bytes(124), switch_to=EVERYBODY, why="the parser counts to 31 words"),
    _layered("behind a contributing source", 2, one_byte([(EXTENSION, descriptor(3))]), first=0x81, sources=b"\1\2\3\4", switch_to=EVERYBODY, why="the parser reads extensions where there are none"),
]  # fmt: skip


def nodes() -> list[tuple[int, int, Receiver]]:
    """A node for each member of each tree: its number, its tree, whose it is."""
    members = [(mgid, receiver) for mgid, found in TREES.items() for receiver in found]
    return [(number, mgid, receiver) for number, (mgid, receiver) in enumerate(members, 1)]


def copies(vector: Replicated, receivers: list[Receiver], agent: Port | None = None) -> list[tuple[Port, bytes]]:
    """Every frame that has to come out, and where, sorted; agent: where its copies go, if they are frames."""
    found = [(receiver.hop.port, vector.copy(receiver)) for receiver in receivers]
    if vector.to_agent and agent is not None:
        found.append((agent, vector.frame))
    return sorted(found)
