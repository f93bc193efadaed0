"""`shunt capture`: the agent tells which calls fit, the softswitch sends their packets, and a pcapng file gets both."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import click

from shunt import version
from shunt.admin import AdminClient, AgentError, AgentUnreachable
from shunt.calls.text import printable
from shunt.cli import frames
from shunt.cli.failure import EXIT_PROBLEM, EXIT_UNREACHABLE, EXIT_USAGE, Failure
from shunt.cli.pcapng import ETHERNET, INBOUND, OUTBOUND, RAW_IP, Writer
from shunt.errors import cause, plain
from shunt.net import Endpoint

_HEAD = struct.Struct("!QIIBBHH16s16s")
_REFUSED = 255
_MOST_PORTS = 4096  # of the softswitch for one client
_SIGN_S = 2.0  # the softswitch ends the capture of a client that is silent for 10 s
_RETRY_S = 0.2
_LAST_S = 0.5  # for packets that are on their way when the call ends
_PROGRESS_S = 1.0


def filter_of(target: str) -> dict[str, Any]:
    """The parameters of a target. A Call-ID has no "=" (RFC 3261 section 25.1, word). Raises Failure (usage)."""
    name, sign, value = target.partition("=")
    if not sign:
        return {"call": target}
    if name == "call":
        return {"match": value}
    if name == "address":
        with contextlib.suppress(ValueError):
            return {"address": str(ipaddress.ip_address(value.strip("[]")))}
        with contextlib.suppress(ValueError):
            found = Endpoint.parse(value)
            return {"address": found.ip, "port": found.port}
    raise Failure(f"{target!r} is neither a Call-ID, call=TEXT nor address=ADDRESS[:PORT]", EXIT_USAGE)


@dataclass(frozen=True, slots=True)
class Stream:
    """What the packets at a relay port are."""

    call: str
    name: str
    state: str


def streams_of(call: dict[str, Any]) -> dict[Endpoint, Stream]:
    """The streams of a call in the admin API's form, by the relay port at which their packets arrive."""
    found: dict[Endpoint, Stream] = {}
    for line in call["lines"]:
        for party in ("caller", "callee"):
            if (text := line[party]["relay_port"]) is None:
                continue
            port = Endpoint.parse(text)
            for component, at in (("rtp", port), ("rtcp", port.next_port())):
                stream = next((s for s in line["streams"] if s["from"] == party and s["component"] == component), None)
                state = f"{stream['state']}, {stream['reason']}" if stream else "unknown"
                found[at] = Stream(call["call"], f"media {line['media']} {component} from the {party}", state)
                if stream and stream["entry"] is not None:
                    found[Endpoint.parse(stream["entry"]["destination"])] = found[at]
    return found


@dataclass
class _Interface:
    number: int
    packets: int = 0


@dataclass
class Capture:
    """One capture: what has been asked for, what is known, and what has been written."""

    writer: Writer
    flush: Any
    seconds: int
    packets: int
    most_bytes: int
    rtcp_only: bool
    headers_only: bool
    calls: dict[str, dict[Endpoint, Stream]] = field(default_factory=dict)
    socket: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    written: int = 0
    sip: int = 0
    missed: int = 0
    gaps: int = 0
    seen: set[str] = field(default_factory=set)
    _interfaces: dict[tuple[Endpoint, Endpoint, int], _Interface] = field(default_factory=dict)
    _sip_interface: int | None = None
    _warned: set[str] = field(default_factory=set)

    def end(self, reason: str) -> None:
        """End it; the first reason counts."""
        self.reason = self.reason or reason
        self.ended.set()

    def warn(self, text: str) -> None:
        """Say something once."""
        if text not in self._warned:
            self._warned.add(text)
            click.echo(f"shunt: {printable(text)}", err=True)

    def ports(self) -> list[str]:
        """The relay ports of all calls."""
        found = [str(port) for streams in self.calls.values() for port in streams]
        if len(found) > _MOST_PORTS:
            self.warn(f"a capture has at most {_MOST_PORTS} ports: further calls are not captured")
        return found[:_MOST_PORTS]

    def told(self, line: dict[str, Any], one_call: bool) -> None:
        """Take in a line of the agent."""
        kind = line["kind"]
        if kind == "begun":
            # Calls that ended while the agent was away are not told.
            self.calls.clear()
            if not self.socket.done():
                self.socket.set_result(line["socket"])
        elif kind == "update":
            self.calls[line["call"]] = streams_of(line)
            self.seen.add(line["call"])
            self.changed.set()
        elif kind == "ended":
            self.calls.pop(line["call"], None)
            self.changed.set()
            if one_call and not self.calls:
                self.end("the call has ended")
        elif kind == "sip":
            self.write_sip(line)
        elif kind == "missed":
            self.missed += line["messages"]
        elif kind == "limit":
            self.warn(f"a capture has at most {line['calls']} calls: further calls are not captured")

    def write_sip(self, line: dict[str, Any]) -> None:
        """Write a SIP message."""
        if self._sip_interface is None:
            self._sip_interface = self.writer.interface(RAW_IP, "sip", "SIP from HEP copies", "IP and UDP headers are made from HEP's addresses, also for SIP over TCP")
        source, destination = Endpoint.parse(line["source"]), Endpoint.parse(line["destination"])
        if source.version == destination.version:
            packet = frames.datagram(source.ip, source.port, destination.ip, destination.port, frames.bytes_of(line["message"]))
            self.writer.packet(self._sip_interface, line["time_us"] * 1000, packet, len(packet), comment=f"protocol {'TCP' if line['protocol'] == 6 else 'UDP'}" if line["protocol"] == 6 else "")
            self.sip += 1
            self.flush()

    def record(self, data: bytes) -> None:
        """Take in a record of the softswitch. Raises Failure where it refuses the capture."""
        time_ns, length, missed, side, ip_version, sport, dport, src, dst = _HEAD.unpack_from(data)
        frame = data[_HEAD.size :]
        if side == _REFUSED:
            raise Failure(f"the softswitch refuses the capture: {frame.decode(errors='replace')}")
        self.missed += missed
        size = 4 if ip_version == 4 else 16
        source, port = Endpoint(src[:size], sport), Endpoint(dst[:size], dport)
        at = frames.payload_at(frame)
        if self.rtcp_only and (at is None or not frames.is_rtcp(frame[at:])):
            return
        if self.headers_only and at is not None:
            frame = frame[: at + frames.header_length(frame[at:])]
        key = (source, port, side)
        comment = ""
        if (interface := self._interfaces.get(key)) is None:
            stream = next((streams[port] for streams in self.calls.values() if port in streams), None) or Stream("unknown", "unknown stream", "unknown")
            way = "as it left" if side else "as it came"
            comment = f"{stream.name}, {way}: call {stream.call}; {stream.state}; entry for {source} > {port}"
            interface = self._interfaces[key] = _Interface(self.writer.interface(ETHERNET, f"{stream.name.replace(' from the ', ' ')} {'left' if side else 'came'}", comment, comment))
        self.writer.packet(interface.number, time_ns, frame, length, OUTBOUND if side else INBOUND, comment)
        interface.packets += 1
        self.written += 1
        if self.written >= self.packets:
            self.end(f"{self.packets} packets are written")
        if self.writer.bytes >= self.most_bytes:
            self.end(f"the file has {self.writer.bytes} bytes")

    def close(self) -> None:
        """Write the statistics of all interfaces."""
        now = time.time_ns()
        for at, interface in enumerate(self._interfaces.values()):
            # Nobody knows whose packets are missing.
            self.writer.statistics(interface.number, now, interface.packets, self.missed if at == 0 else 0)

    def summary(self, path: str) -> dict[str, Any]:
        """What has been captured."""
        return {"file": path, "packets": self.written, "sip": self.sip, "missed": self.missed, "gaps": self.gaps, "bytes": self.writer.bytes, "calls": sorted(self.seen), "ended": self.reason}


async def _follow_agent(capture: Capture, admin: str, query: dict[str, Any]) -> None:
    begun = False
    while True:
        try:
            async with AdminClient(admin) as client:
                async for line in client.capture(**query):
                    begun = True
                    capture.told(line, "call" in query)
            capture.warn("the agent has ended the stream; the capture continues, and the agent is asked again")
        except AgentError as error:
            if not begun:
                raise Failure(error.message, EXIT_USAGE if error.status == 400 else EXIT_PROBLEM) from None
            if error.status == 404:
                return capture.end("the call has ended")
        except AgentUnreachable as error:
            if not begun:
                raise Failure(str(error), EXIT_UNREACHABLE) from None
            capture.warn(f"{error}: the capture continues, and the agent is asked again")
        await asyncio.sleep(_RETRY_S)


async def _wish(capture: Capture, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(json.dumps({"ports": capture.ports()}).encode() + b"\n")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(capture.changed.wait(), _SIGN_S)
        capture.changed.clear()


async def _follow_softswitch(capture: Capture) -> None:
    path, begun = await capture.socket, False
    while True:
        wishing: asyncio.Task[None] | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(path)
            wishing, begun = asyncio.create_task(_wish(capture, writer)), True
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                capture.record(await reader.readexactly(length))
                capture.flush()
        except asyncio.IncompleteReadError:
            error = "the connection has ended"
        except OSError as problem:
            if isinstance(problem, BrokenPipeError) and wishing is None:
                raise
            error = cause(problem)
        finally:
            if wishing is not None:
                wishing.cancel()
        if not begun:
            raise Failure(f"softswitch at {path}: {error}", EXIT_UNREACHABLE)
        capture.gaps += 1 if wishing is not None else 0
        capture.warn(f"softswitch at {path}: {error}; packets are missing until it is back")
        await asyncio.sleep(_RETRY_S)


async def _show(capture: Capture) -> None:
    while sys.stderr.isatty():
        click.echo(f"\r{len(capture.calls)} calls, {capture.written} packets, {capture.sip} SIP messages, {capture.missed} missed ", err=True, nl=False)
        await asyncio.sleep(_PROGRESS_S)


async def _capture(capture: Capture, admin: str, query: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, capture.end, "a signal")
    work = [asyncio.create_task(_follow_agent(capture, admin, query)), asyncio.create_task(_follow_softswitch(capture))]
    ended, progress = asyncio.create_task(capture.ended.wait()), asyncio.create_task(_show(capture))
    try:
        done, _ = await asyncio.wait({*work, ended}, timeout=capture.seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            capture.end(f"{capture.seconds} s are over")
        for task in done:
            task.result()
        if capture.reason == "the call has ended":
            await asyncio.sleep(_LAST_S)
    finally:
        for task in (*work, ended, progress):
            task.cancel()
        await asyncio.gather(*work, ended, progress, return_exceptions=True)
        if sys.stderr.isatty():
            click.echo(err=True)


def _open(path: str) -> BinaryIO:
    if path == "-":
        if sys.stdout.isatty():
            raise Failure("standard output is a terminal: give -w FILE or a pipe", EXIT_USAGE)
        return sys.stdout.buffer
    try:
        # Media is for nobody else's eyes.
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise Failure(plain(error, path)) from None


def run(target: str, path: str | None, seconds: int, packets: int, most_bytes: int, rtcp_only: bool, headers_only: bool, socket: str, as_json: bool) -> None:
    """Capture to the end. Raises Failure."""
    query = filter_of(target)
    path = path or time.strftime("shunt-%Y%m%d-%H%M%S.pcapng")

    async def whole() -> Capture:
        stream = _open(path)
        capture = Capture(Writer(stream, f"shunt {version()}"), stream.flush, seconds, packets, most_bytes, rtcp_only, headers_only)
        try:
            await _capture(capture, socket, query)
            capture.close()
            stream.flush()
        except BrokenPipeError:
            # The reader of the pipe has what it wants. Python must not flush once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            if path != "-":
                stream.close()
        return capture

    try:
        capture = asyncio.run(whole())
    except OSError as error:
        raise Failure(plain(error, path)) from None
    found = capture.summary(path)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False), err=True)
    else:
        click.echo(printable(f"{path}: {capture.written} packets and {capture.sip} SIP messages of {len(capture.seen)} calls; ended: {capture.reason or 'the reader is gone'}"), err=True)
    if capture.missed or capture.gaps:
        raise Failure(f"the file is incomplete: {capture.missed} packets or messages are missing, and the softswitch was away {capture.gaps} times")
    if not capture.written:
        raise Failure("the softswitch forwarded no packet (`shunt why CALL-ID` has the reason)")
