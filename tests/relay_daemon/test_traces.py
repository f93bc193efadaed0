"""Conformance over the wire: what rtpproxy answered in the recordings, the daemon answers too, port for port.

Recordings are replayed without their pauses, so those about time-outs are left out; the engine's own tests have these.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.relay.test_traces import ADDRESSES, FILES, Ports, _compare, _deliberate, _local
from tests.relay_daemon.process import Relay, StreamClient
from tests.rtpproxy.traces import load

_LEFT_OUT = {
    "02b": "automatic bridging by the recorded host's routes",
    "23": "time-outs",
    "24": "time-outs",
}
_BRIDGED = re.compile(rb"[UL]\w*R10\.91\.", re.IGNORECASE)  # by the recorded host's routes
REPLAYED = [file for file in FILES if not file.name.startswith(tuple(_LEFT_OUT))]


def _addresses(path: Path) -> list[str]:
    line = re.search(r"rtpproxy -f .*", path.read_text(errors="replace"))
    if line is None:
        return ["127.0.0.1"]
    addresses = [ADDRESSES[address] for address in re.search(r"-l (\S+)", line.group())[1].split("/")]
    if six := re.search(r"-6 (?:/|\w+@)?(\S+)", line.group()):
        addresses.append(ADDRESSES[six[1]])
    return addresses


@pytest.mark.skipif(not FILES, reason="the recordings (shared/traces beside the repository) are not here")
@pytest.mark.parametrize("path", REPLAYED, ids=lambda path: path.stem)
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
