"""An asyncio BF Runtime client: one subscription and binding, kept up; writes with a result for each update; reads; notices.

It needs nothing of P4 Studio and works with any server of the protocol.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import status_pb2

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Schema, SchemaError
from shunt.precedence import background
from shunt.tasks import being_cancelled

log = logging.getLogger(__name__)

OK, NOT_FOUND, ALREADY_EXISTS, NO_SPACE, UNAVAILABLE = 0, 5, 6, 8, 14
# "Not ready" and "try again later": nothing was done, and the same update may well succeed soon.
RETRYABLE = frozenset({UNAVAILABLE})

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The errors of a batch come as one trailer.
    ("grpc.max_metadata_size", 1 << 30),
    ("grpc.absolute_max_metadata_size", 1 << 30),
    # No keep-alive pings: a server with gRPC's default limits ends a connection that pings more often than every five
    # minutes. The agent reads the totals every second, and gives up a target that answers nothing for _HUNG seconds.
    # Two channels to one target are two connections.
    ("grpc.use_local_subchannel_pool", 1),
    # Reconnecting is this client's own job: gRPC's back-off would come on top.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
# Without it the :authority of a Unix socket's requests is its path, which is no authority (RFC 3986 section 3.2).
_UNIX_OPTIONS = (("grpc.default_authority", "localhost"),)
# A call that ends so may have been carried out.
_UNCERTAIN = frozenset(
    getattr(grpc.StatusCode, name) for name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "DATA_LOSS")
)
_SUBSCRIBE_TIMEOUT = 5.0
# A target that answers nothing for so many seconds, though asked, is as good as gone: its connection may
# stand, but who waits for it waits in vain.
_HUNG = 4.0
_BACKOFF = (0.1, 0.5)  # seconds
_PROBE_S = 0.05  # between two looks whether a restarted data plane listens again
_SERVICE = "/bfrt_proto.BfRuntime/"


class BfrtUnavailable(Exception):
    """The target did not answer: what was asked may or may not have been done."""


class BfrtRefused(Exception):
    """The target refused a call as a whole."""


@dataclass(frozen=True, slots=True)
class UpdateError:
    """Why one update or read entity failed. code is google.rpc.Code (facts: 6 exists, 5 not found, 8 no space, …)."""

    code: int
    message: str


def _error_details(error: grpc.aio.AioRpcError) -> list[UpdateError | None] | None:
    """The per-update errors of a failed Write or Read; None where the server sent none."""
    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
            found: list[UpdateError | None] = []
            for detail in status.details:
                message = pb.Error()
                if not detail.Unpack(message):
                    return None
                found.append(UpdateError(message.canonical_code, message.message) if message.canonical_code else None)
        except Exception:  # protobuf's DecodeError differs between its implementations
            return None
        return found or None
    return None


class BfrtClient:
    """A subscribed and bound client of one program.

    Callbacks are plain attributes: on_up(Schema) after every (re)connection, on_down(reason) when it is
    lost, on_digest(DigestList), on_idle(IdleTimeoutNotification). check(Schema) comes before the binding
    and may raise SchemaError to refuse the target. None of them may block.
    """

    def __init__(self, target: str, *, client_id: int, device_id: int = 0, program: str = "relay") -> None:
        """target is HOST:PORT or unix:/PATH; client_id must differ from every other client's."""
        self.target = target
        self.credentials: grpc.ChannelCredentials | None = None  # of TLS; None: without
        self.client_id = client_id
        self.device_id = device_id
        self.program = program
        self.schema: Schema | None = None
        self.connected = False
        self.last_error = "not yet connected"
        self.check: Callable[[Schema], None] = lambda schema: None
        self.may_write: Callable[[], bool] = lambda: True
        self.on_up: Callable[[Schema], None] = lambda schema: None
        self.on_down: Callable[[str], None] = lambda reason: None
        self.on_digest: Callable[[pb.DigestList], None] = lambda digest: None
        self.on_idle: Callable[[pb.IdleTimeoutNotification], None] = lambda notice: None
        self._channel: grpc.aio.Channel | None = None
        # Large answers come over a connection of their own, so that none stands in front of a write's.
        self._bulk_channel: grpc.aio.Channel | None = None
        self._methods: dict[tuple[grpc.aio.Channel, str], Callable[..., Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self._lost = False
        self._reading: asyncio.Timeout | None = None
        self._silent_since: float | None = None  # the first question since the last answer
        header = pb.WriteRequest(client_id=client_id)
        self._aim(header.target)
        # Target and client id have the same numbers in a ReadRequest.
        self._write_header = self._read_header = header.SerializeToString()

    def _open(self) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS + (_UNIX_OPTIONS if self.target.startswith("unix:") else ()))
        return grpc.aio.secure_channel(self.target, self.credentials, options=_OPTIONS)

    def _aim(self, target: pb.TargetDevice) -> None:
        target.device_id, target.pipe_id, target.direction, target.prsr_id = self.device_id, 0xFFFF, 0xFF, 0xFF

    # Connection.

    def start(self) -> None:
        """Begin connecting in the background, and keep connected until close()."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name=f"bfrt {self.target}", context=background())

    async def close(self) -> None:
        """Leave; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._down("closed")
        await self._drop_channel()

    async def _drop_channel(self) -> None:
        channels = (self._channel, self._bulk_channel)
        self._methods.clear()
        self._channel = self._bulk_channel = None
        for channel in channels:
            if channel is not None:
                await channel.close()

    async def _keep_connected(self) -> None:
        delay = _BACKOFF[0]
        while True:
            reason = "the target ended the stream"
            try:
                self._channel, self._bulk_channel = self._open(), self._open()
                await self._session(self._channel)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
                reason = str(error)
            except asyncio.CancelledError:
                if being_cancelled():
                    raise
                reason = "a call was cancelled"
            except Exception as error:
                log.exception("BF Runtime session with %s", self.target)
                reason = f"{type(error).__name__}: {error}"
            if self.connected:
                delay = _BACKOFF[0]
            self._down(reason)
            await self._drop_channel()
            # Spread over time, so that several agents do not come back in step.
            await self._pause(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, _BACKOFF[1])

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the target, which had refused a connection, takes one: a restarted data plane must not wait for us."""
        deadline, refused = time.monotonic() + seconds, False
        while (left := deadline - time.monotonic()) > 0:
            if not await self._listens():
                refused = True
            elif refused:
                return
            await asyncio.sleep(min(_PROBE_S, left))

    async def _listens(self) -> bool:
        """Whether the target takes connections; a name is not looked up for it, and a gRPC address of another kind not judged."""
        address: str | tuple[str, int]
        if self.target.startswith("unix:"):
            family, address = socket.AF_UNIX, self.target.removeprefix("unix:")
        else:
            host, _, port = self.target.rpartition(":")
            try:
                found = ipaddress.ip_address(host.strip("[]"))
            except ValueError:
                return True
            family, address = (socket.AF_INET6 if found.version == 6 else socket.AF_INET), (str(found), int(port))
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                async with asyncio.timeout(_BACKOFF[1]):  # wait_for may swallow the cancellation by which close() ends this
                    await asyncio.get_running_loop().sock_connect(probe, address)
            except OSError:  # TimeoutError is one
                return False
        return True

    def _down(self, reason: str) -> None:
        if reason != self.last_error:
            log.log(logging.INFO if reason == "closed" else logging.WARNING, "data plane %s: %s", self.target, reason)
        self.last_error = reason
        if self.connected:
            self.connected = False
            self._call(self.on_down, reason)

    async def _session(self, channel: grpc.aio.Channel) -> None:
        """One connection's life, until the stream ends."""
        self._lost = False
        self._silent_since = None
        stream = channel.stream_stream(
            _SERVICE + "StreamChannel", request_serializer=pb.StreamMessageRequest.SerializeToString, response_deserializer=pb.StreamMessageResponse.FromString
        )()
        try:
            request = pb.StreamMessageRequest(client_id=self.client_id)
            request.subscribe.device_id = self.device_id
            wants = request.subscribe.notifications
            wants.enable_learn_notifications = wants.enable_idletimeout_notifications = wants.enable_entry_active_notifications = True
            await stream.write(request)
            async with asyncio.timeout(_SUBSCRIBE_TIMEOUT):
                first = await stream.read()
            if first is grpc.aio.EOF:
                return
            if first.WhichOneof("update") != "subscribe" or first.subscribe.status.code != OK:
                raise BfrtRefused(f"subscription refused: {first.subscribe.status.message or first.WhichOneof('update')}")
            self.schema = await self._fetch_schema(channel)
            self.check(self.schema)
            await self._bind(channel)
            self.connected = True
            self.last_error = ""
            log.info("data plane %s: bound to %s", self.target, self.program)
            self._call(self.on_up, self.schema)
            await self._read_notices(stream)
        except TimeoutError:
            raise BfrtUnavailable(f"no answer to the subscription within {_SUBSCRIBE_TIMEOUT:g} s") from None
        finally:
            stream.cancel()

    async def _read_notices(self, stream: grpc.aio.StreamStreamCall) -> None:
        """Until the stream ends, or _lose() is called."""
        try:
            async with asyncio.timeout(None) as self._reading:
                while not self._lost:
                    message = await stream.read()
                    if message is grpc.aio.EOF:
                        return
                    self._dispatch(message)
        except TimeoutError:
            pass
        finally:
            self._reading = None
        raise BfrtUnavailable(self.last_error or "a call found the session gone")

    def _lose(self, reason: str) -> None:
        """The session is gone, whatever the stream says."""
        self.last_error = reason
        self._lost = True
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def _fetch_schema(self, channel: grpc.aio.Channel) -> Schema:
        get = channel.unary_unary(
            _SERVICE + "GetForwardingPipelineConfig",
            request_serializer=pb.GetForwardingPipelineConfigRequest.SerializeToString,
            response_deserializer=pb.GetForwardingPipelineConfigResponse.FromString,
        )
        reply = await get(pb.GetForwardingPipelineConfigRequest(device_id=self.device_id, client_id=self.client_id), timeout=30)
        for config in reply.config:
            if config.p4_name == self.program:
                documents = [config.bfruntime_info]
                if reply.non_p4_config.bfruntime_info:
                    documents.append(reply.non_p4_config.bfruntime_info)
                contexts = [profile.context for profile in config.profiles if profile.context]
                return await asyncio.to_thread(lambda: Schema.parse(*documents).with_contexts(contexts))
        names = ", ".join(config.p4_name for config in reply.config) or "none"
        raise BfrtRefused(f"the target does not run program {self.program!r}; it runs {names}")

    async def _bind(self, channel: grpc.aio.Channel) -> None:
        bind = channel.unary_unary(
            _SERVICE + "SetForwardingPipelineConfig",
            request_serializer=pb.SetForwardingPipelineConfigRequest.SerializeToString,
            response_deserializer=pb.SetForwardingPipelineConfigResponse.FromString,
        )
        request = pb.SetForwardingPipelineConfigRequest(device_id=self.device_id, client_id=self.client_id)
        request.action = request.BIND
        request.config.add(p4_name=self.program)
        try:
            await bind(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.ALREADY_EXISTS:
                raise BfrtRefused(f"another client owns program {self.program!r}: {error.details()}") from None
            raise

    def _dispatch(self, message: pb.StreamMessageResponse) -> None:
        kind = message.WhichOneof("update")
        if kind == "digest":
            self._call(self.on_digest, message.digest)
        elif kind == "idle_timeout_notification":
            self._call(self.on_idle, message.idle_timeout_notification)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:
            log.exception("data plane %s: callback", self.target)

    # Calls.

    def _ready(self, bulk: bool = False) -> grpc.aio.Channel:
        channel = self._bulk_channel if bulk else self._channel
        if not self.connected or channel is None:
            raise BfrtUnavailable(f"{self.target}: {self.last_error or 'not connected'}")
        return channel

    def _method(self, channel: grpc.aio.Channel, name: str) -> Callable[..., Any]:
        """How to call Write or Read over this channel, made once for each."""
        found = self._methods.get((channel, name))
        if found is None:
            make = channel.unary_unary if name == "Write" else channel.unary_stream
            found = self._methods[channel, name] = make(_SERVICE + name)
        return found

    def _given_up(self) -> BfrtUnavailable:
        """For the caller of a call that ended because its channel was closed."""
        return BfrtUnavailable(f"{self.target}: {self.last_error or 'the session was given up'}")

    def _failed(self, error: grpc.aio.AioRpcError) -> Exception:
        """What a call's failure as a whole means; a session that turns out to be gone is given up."""
        code, details = error.code(), error.details()
        text = f"{self.target}: {code.name}: {details}"
        if code in _UNCERTAIN:
            return BfrtUnavailable(text)
        if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND):
            # UNKNOWN without details: subscribed but not bound. NOT_FOUND: the server knows no such client
            # (it restarted faster than the stream broke).
            self._lose(text)
            return BfrtUnavailable(text)
        return BfrtRefused(text)

    def _asked(self) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def _unanswered(self) -> None:
        """A deadline has passed: give the session up when the target has been silent for long."""
        if self._silent_since is not None and time.monotonic() - self._silent_since >= _HUNG:
            self._lose(f"{self.target} has answered nothing for {_HUNG:g} s")

    async def write(self, updates: Sequence[bytes], *, timeout: float) -> list[UpdateError | None]:
        """Send serialised WriteRequest.updates fields (tag included); for each None or its error.

        Every update is tried (CONTINUE_ON_ERROR); timeout is seconds. Raises BfrtUnavailable when there was no answer, so
        that nothing is known, and BfrtRefused when the whole call was refused.
        """
        if not self.may_write():
            raise BfrtUnavailable(f"{self.target}: another agent may be in charge")
        call = self._method(self._ready(), "Write")
        self._asked()
        try:
            await call(self._write_header + b"".join(updates), timeout=timeout)
            self._silent_since = None
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            raise self._given_up() from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._unanswered()
            else:
                self._silent_since = None
            details = _error_details(error) if error.code() == grpc.StatusCode.UNKNOWN else None
            if details is None:
                raise self._failed(error) from None
            if len(details) > len(updates):
                raise BfrtRefused(f"{self.target}: {len(details)} errors for {len(updates)} updates") from None
            # The list stops at the last error; what comes after it succeeded.
            return details + [None] * (len(updates) - len(details))
        return [None] * len(updates)

    async def write_entities(self, kind: int, entities: Iterable[pb.Entity], *, timeout: float = 10.0) -> list[UpdateError | None]:
        """Write entities with one update type; see write()."""
        return await self.write([update_bytes(kind, entity) for entity in entities], timeout=timeout)

    async def read(self, entities: Iterable[pb.Entity], *, timeout: float) -> list[pb.Entity]:
        """Read; the result is everything that was found, what was not found is left out.

        Raises BfrtUnavailable, or BfrtRefused for any error other than "not found".
        """
        found: list[pb.Entity] = []
        for response in await self.read_raw([entity_bytes(entity) for entity in entities], timeout=timeout):
            found += pb.ReadResponse.FromString(response).entities
        return found

    async def read_raw(self, entities: Sequence[bytes], *, timeout: float, bulk: bool = False) -> list[bytes]:
        """Read, with serialised ReadRequest.entities fields (tag included); the result are serialised ReadResponses.

        timeout is seconds; bulk: a large answer is expected, which must not hold up others.
        """
        call = self._method(self._ready(bulk), "Read")
        found: list[bytes] = []
        if not bulk:
            self._asked()
        try:
            async for response in call(self._read_header + b"".join(entities), timeout=timeout):
                found.append(response)
            self._silent_since = None
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            raise self._given_up() from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._unanswered()
            else:
                self._silent_since = None
            details = _error_details(error) if error.code() == grpc.StatusCode.UNKNOWN else None
            if details is None:
                raise self._failed(error) from None
            other = [detail for detail in details if detail is not None and detail.code != NOT_FOUND]
            if other:
                raise BfrtRefused(f"{self.target}: {other[0].message}") from None
        return found


def update_bytes(kind: int, entity: pb.Entity) -> bytes:
    """One WriteRequest.updates field with its tag, as write() takes it."""
    body = pb.Update(type=kind, entity=entity).SerializeToString()
    return b"\x1a" + wire.varint(len(body)) + body


def entity_bytes(entity: pb.Entity) -> bytes:
    """One ReadRequest.entities field with its tag, as read_raw() takes it."""
    body = entity.SerializeToString()
    return b"\x1a" + wire.varint(len(body)) + body
