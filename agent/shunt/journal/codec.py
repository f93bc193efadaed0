"""Calls as the journal keeps them: one line of JSON each. Pure functions.

Old and new versions of the agent read each other's lines: a key that is missing has its default, a key
that is not known is passed over, and so is what follows the known items of a list. A change that cannot be
read so needs another FORMAT.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from shunt.calls.model import Call, Component, Leg, MediaLine, Side, State, Stream, new_line
from shunt.learning.latch import Latch, LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.quality.score import Measurement
from shunt.tables.entry import RelayEntry, StreamStats

FORMAT = 1

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _end(endpoint: Endpoint | None) -> list[Any] | None:
    return None if endpoint is None else [endpoint.addr.hex(), endpoint.port]


def _endpoint(value: list[Any] | None) -> Endpoint | None:
    return None if value is None else Endpoint(bytes.fromhex(value[0]), int(value[1]))


def _latch(latch: Latch) -> dict[str, Any]:
    return {"learned": _end(latch.learned), "ssrc": latch.ssrc, "seq": latch.seq, "trusted": [a.hex() for a in latch.trusted]}


def encode_call(call: Call) -> str:
    """A call as one line of JSON. Times are kept as Unix times: monotonic ones mean nothing to the next process."""
    epoch = call.created_wall - call.created
    return _to_json({
        "call_id": call.call_id, "relay": call.relay, "created": call.created_wall,
        "lines": [_encode_line(line, epoch) for line in call.lines if line.released is None],
    })


def _encode_line(line: MediaLine, epoch: float) -> dict[str, Any]:
    return {
        "kept": None if line.kept_alive_at is None else round(epoch + line.kept_alive_at, 3),
        "tag": line.tag, "media": line.media, "other_tag": line.other_tag,
        "notify": [line.notify_socket, line.notify_tag, line.peer_ip], "blocks": sorted(line.blocks), "ttl_raised": line.ttl_raised,
        "established": line.established,
        "legs": {
            side.value: {
                "signalled": _end(leg.signalled), "relay": _end(leg.relay), "modifiers": leg.modifiers, "keepalive": leg.keepalive,
                "asymmetric": leg.asymmetric, "rtp": _latch(leg.rtp), "rtcp": _latch(leg.rtcp), "types": list(leg.payload_types.items()),
            } for side, leg in line.legs.items()
        },
        "streams": [
            {
                "sender": s.sender.value, "component": s.component.value, "was": s.was_offloaded, "packets": s.past.packets, "bytes": s.past.bytes,
                "measured": s.measured.values() if s.measured.entries else None,
                "entry": None if s.installed is None else [
                    _end(s.installed.key.src), _end(s.installed.key.dst), _end(s.installed.src), _end(s.installed.dst), s.installed.ttl_ms,
                ],
            } for s in line.streams if s.installed is not None or s.was_offloaded or s.past.packets or s.measured.entries
        ],
    }


_RELAY_PORT = re.compile(r'"relay": \["([0-9a-f]+)", ([0-9]+)\]')


def relay_ports(body: str) -> list[Endpoint]:
    """The relay ports of a call's legs, out of its line of JSON as encode_call writes it; much quicker than reading the call."""
    return [Endpoint(bytes.fromhex(address), int(port)) for address, port in _RELAY_PORT.findall(body)]


def decode_call(body: dict[str, Any], policy: LatchPolicy, now: float) -> Call:
    """Read one call back. Raises KeyError, TypeError or ValueError for what encode_call did not write."""
    wall = float(body["created"])
    call = Call(body["call_id"], body["relay"], now - max(0.0, time.time() - wall), wall)
    for item in body["lines"]:
        line = new_line(call, item["tag"], item["media"], now, policy)
        line.other_tag = item["other_tag"]
        line.notify_socket, line.notify_tag, line.peer_ip = item["notify"][:3]
        line.blocks = set(item["blocks"])
        line.ttl_raised = item["ttl_raised"]
        if item.get("kept") is not None:
            line.kept_alive_at = min(now, call.created + float(item["kept"]) - wall)
        line.established = item.get("established", False)
        for side in Side:
            _decode_leg(line.legs[side], item["legs"][side.value], now)
        for row in item["streams"]:
            _decode_stream(line.stream(Side(row["sender"]), Component(row["component"])), row, now)
        call.lines.append(line)
    return call


def _decode_leg(leg: Leg, row: dict[str, Any], now: float) -> None:
    leg.signalled, leg.relay = _endpoint(row["signalled"]), _endpoint(row["relay"])
    leg.modifiers, leg.keepalive, leg.asymmetric = row["modifiers"], row["keepalive"], row["asymmetric"]
    leg.payload_types = dict(row.get("types", ()))
    for latch, kept in ((leg.rtp, row["rtp"]), (leg.rtcp, row["rtcp"])):
        latch.trusted = {bytes.fromhex(a) for a in kept["trusted"]}
        learned = _endpoint(kept["learned"])
        if learned is not None:
            latch.take(learned, kept["ssrc"] or 0, kept["seq"])
    if leg.rtp.learned is not None:
        leg.latched_at = leg.first_heard = now


def _decode_stream(stream: Stream, row: dict[str, Any], now: float) -> None:
    stream.was_offloaded = row["was"]
    stream.past = StreamStats(packets=row["packets"], bytes=row["bytes"])
    measured = row.get("measured") or (stream.past.packets, stream.past.bytes, int(stream.past.packets > 0))
    stream.measured = Measurement(*measured[: len(Measurement.__slots__)])
    if row["entry"] is not None:
        key_src, key_dst, src, dst = (_endpoint(value) for value in row["entry"][:4])
        stream.installed = RelayEntry(FiveTuple(key_src, key_dst), src, dst, row["entry"][4])
        stream.set(State.OFFLOADED, "offloaded", now)
