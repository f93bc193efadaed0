"""Calls as the journal keeps them: one line of JSON each. Pure functions.

Old and new versions of the agent read each other's lines: a key that is missing has its default, a key
that is not known is passed over, and so is what follows the known items of a list. A change that cannot be
read so needs another FORMAT.
"""

from __future__ import annotations

import json
import re
import time
from json.encoder import encode_basestring_ascii
from typing import Any

from shunt.calls.model import Call, Component, Leg, MediaLine, Side, State, Stream, new_line
from shunt.learning.latch import Latch, LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.quality.score import Measurement
from shunt.tables.entry import RelayEntry, StreamStats

FORMAT = 1


def _endpoint(value: list[Any] | None) -> Endpoint | None:
    return None if value is None else Endpoint(bytes.fromhex(value[0]), int(value[1]))


# Lines are put together from text: it takes a third of the time that making objects of them and giving those to json would, and an
# answer waits for it.

_FLAG = {False: "false", True: "true"}


def _text(value: str | None) -> str:
    return "null" if value is None else encode_basestring_ascii(value)


def _end(endpoint: Endpoint | None) -> str:
    return "null" if endpoint is None else f'["{endpoint.addr.hex()}",{endpoint.port}]'


def _latch(latch: Latch) -> str:
    trusted = ",".join([f'"{address.hex()}"' for address in latch.trusted])
    return f'{{"learned":{_end(latch.learned)},"ssrc":{"null" if latch.ssrc is None else latch.ssrc},"seq":{latch.seq},"trusted":[{trusted}]}}'


def encode_call(call: Call) -> str:
    """A call as one line of JSON. Times are kept as Unix times: monotonic ones mean nothing to the next process."""
    epoch = call.created_wall - call.created
    lines = ",".join([_encode_line(line, epoch) for line in call.lines if line.released is None])
    return f'{{"call_id":{_text(call.call_id)},"relay":{_text(call.relay)},"created":{call.created_wall!r},"lines":[{lines}]}}'


def _encode_line(line: MediaLine, epoch: float) -> str:
    legs = ",".join([f'"{side.value}":{_encode_leg(leg)}' for side, leg in line.legs.items()])
    # A stream that was never offloaded is as a new line has it.
    streams = ",".join([_encode_stream(s) for s in line.streams if s.installed is not None or s.was_offloaded or s.past.packets or s.measured.entries])
    return (
        f'{{"kept":{"null" if line.kept_alive_at is None else round(epoch + line.kept_alive_at, 3)},"tag":{_text(line.tag)},'
        f'"media":{"null" if line.media is None else line.media},"other_tag":{_text(line.other_tag)},'
        f'"notify":[{_text(line.notify_socket)},{_text(line.notify_tag)},{_text(line.peer_ip)}],"blocks":{json.dumps(sorted(line.blocks)) if line.blocks else "[]"},'
        f'"ttl_raised":{_FLAG[line.ttl_raised]},"established":{_FLAG[line.established]},"legs":{{{legs}}},"streams":[{streams}]}}'
    )


def _encode_leg(leg: Leg) -> str:
    types = ",".join([f"[{number},{count}]" for number, count in leg.payload_types.items()])
    return (
        f'{{"signalled":{_end(leg.signalled)},"relay":{_end(leg.relay)},"modifiers":{_text(leg.modifiers)},"keepalive":{_text(leg.keepalive)},'
        f'"asymmetric":{_FLAG[leg.asymmetric]},"rtp":{_latch(leg.rtp)},"rtcp":{_latch(leg.rtcp)},"types":[{types}]}}'
    )


def _encode_stream(stream: Stream) -> str:
    entry = stream.installed
    installed = "null" if entry is None else f"[{_end(entry.key.src)},{_end(entry.key.dst)},{_end(entry.src)},{_end(entry.dst)},{entry.ttl_ms}]"
    return (
        f'{{"sender":"{stream.sender.value}","component":"{stream.component.value}","was":{_FLAG[stream.was_offloaded]},"packets":{stream.past.packets},'
        f'"bytes":{stream.past.bytes},"measured":{json.dumps(stream.measured.values()) if stream.measured.entries else "null"},"entry":{installed}}}'
    )


_RELAY_PORT = re.compile(r'"relay": ?\["([0-9a-f]+)", ?([0-9]+)\]')


def relay_ports(body: str) -> list[Endpoint]:
    """The relay ports of a call's legs, out of its line of JSON as encode_call writes it (earlier with blanks); much quicker than reading the call."""
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
    leg.name(_endpoint(row["signalled"]))
    leg.relay = _endpoint(row["relay"])
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
