"""A softswitch process in a network namespace of its own, and a raw BF Runtime client to it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import grpc
import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.traffic import Wire, frame, namespace, rtp
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc
from tests.tools.entry import LearnNotice, RelayEntry

_client_ids = itertools.count(1)
# P4 Studio's client's own: a batch's errors come as one trailer, far beyond gRPC's usual limit.
OPTIONS = (
    ("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30),
    ("grpc.max_metadata_size", 1 << 30), ("grpc.absolute_max_metadata_size", 1 << 30), ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),  # of a Unix socket gRPC makes its path, which is none (RFC 3986 section 3.2)
)  # fmt: skip


class Raw:
    """Sends protocol messages as P4 Studio's client does, field by field."""

    def __init__(self, channel: grpc.aio.Channel, client_id: int) -> None:
        self.channel = channel
        self.stub = bfruntime_pb2_grpc.BfRuntimeStub(channel)
        self.client_id = client_id
        self.stream: grpc.aio.StreamStreamCall | None = None

    async def subscribe(self, *, learn: bool = True, idle: bool = True, active: bool = False) -> pb.StreamMessageResponse:
        self.stream = self.stub.StreamChannel()
        request = pb.StreamMessageRequest(client_id=self.client_id)
        wants = request.subscribe.notifications
        wants.enable_learn_notifications, wants.enable_idletimeout_notifications = learn, idle
        wants.enable_port_status_change_notifications = wants.enable_selector_update_change_notifications = True
        wants.enable_entry_active_notifications = active
        await self.stream.write(request)
        return await self.stream.read()

    async def bind(self, *names: str, client_id: int | None = None, device_id: int = 0) -> None:
        request = pb.SetForwardingPipelineConfigRequest(client_id=self.client_id if client_id is None else client_id, device_id=device_id)
        request.config.extend(pb.ForwardingPipelineConfig(p4_name=name) for name in names)
        await self.stub.SetForwardingPipelineConfig(request)

    async def connect(self, **wants: bool) -> "Raw":
        """Subscribe and bind."""
        await self.subscribe(**wants)
        await self.bind_when_free()
        return self

    async def bind_when_free(self) -> None:
        """Bind as soon as nobody else is bound: a client that leaves is unbound a moment later."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self.bind("relay")
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.ALREADY_EXISTS:
                        raise
                await asyncio.sleep(0.005)

    async def clear_all_tables(self) -> None:
        """What P4 Studio's client does of that name: a reset of the device."""
        request = pb.SetForwardingPipelineConfigRequest(client_id=self.client_id, action=pb.SetForwardingPipelineConfigRequest.VERIFY_AND_WARM_INIT_BEGIN_AND_END)
        request.config.add(p4_name="relay")
        await self.stub.SetForwardingPipelineConfig(request)

    def write_request(self, *updates: pb.Update, **fields: object) -> pb.WriteRequest:
        request = pb.WriteRequest(client_id=self.client_id, updates=updates, **fields)
        if "target" not in fields:
            request.target.pipe_id, request.target.direction, request.target.prsr_id = 0xFFFF, 0xFF, 0xFF
        return request

    async def write(self, *updates: pb.Update, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> pb.WriteResponse:
        return await self.stub.Write(self.write_request(*updates, **fields), metadata=metadata)

    async def read(self, *entities: pb.Entity, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> pb.ReadResponse:
        """All responses as one. Raises AioRpcError, with what was found in its `found` attribute."""
        request = pb.ReadRequest(client_id=self.client_id, entities=entities, **fields)
        found = pb.ReadResponse()
        try:
            async for response in self.stub.Read(request, metadata=metadata):
                found.MergeFrom(response)
        except grpc.aio.AioRpcError as error:
            error.found = found  # type: ignore[attr-defined]
            raise
        return found


@dataclass
class Served:
    """A running softswitch. `plane` is a client beside those of the test: what is in the tables is what it reads."""

    softswitch: Softswitch
    plane: Plane
    wire: Wire
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def target(self) -> str:
        return self.softswitch.target

    @property
    def table(self) -> dict[FiveTuple, RelayEntry]:
        """All relay entries."""
        return self.plane.entries()

    def raw(self, client_id: int | None = None) -> Raw:
        channel = grpc.aio.insecure_channel(self.target, options=OPTIONS)
        self.channels.append(channel)
        return Raw(channel, next(_client_ids) if client_id is None else client_id)

    def send(self, key: FiveTuple, *payloads: bytes) -> None:
        """Packets of one flow arrive (default: one RTP packet)."""
        for payload in payloads or (rtp(),):
            self.wire.receive(frame(key, payload))

    def notice(self, notice: LearnNotice) -> None:
        """An RTP packet arrives of which this notice speaks."""
        self.send(notice.key, rtp(notice.ssrc, notice.seq))

    def fill(self, room: int) -> None:
        """Fill the relay table up with others' entries until so many more fit in."""
        missing = self.plane.capacity - len(self.plane) - room
        assert self.plane.insert([other(number) for number in range(missing)]) == [None] * missing

    @property
    def own(self) -> dict[FiveTuple, RelayEntry]:
        """All relay entries but those of fill()."""
        return {key: entry for key, entry in self.table.items() if key.src.addr[:1] != b"\x64"}

    async def reset(self) -> None:
        """Empty every table and put all settings back."""
        client = await self.raw().connect(learn=False, idle=False)
        await client.clear_all_tables()
        await self.close()

    async def close(self) -> None:
        """Close the clients."""
        for channel in self.channels:
            await channel.close()
        self.channels.clear()


def other(number: int) -> RelayEntry:
    """An entry of nobody's, from 100.0.0.0/8."""
    relay = Endpoint(b"\x0a\x5b\x01\x01", 1_000 + number % 9_000)
    key = FiveTuple(Endpoint((0x64000000 + number).to_bytes(4, "big"), 4_000), relay)
    return RelayEntry(key, Endpoint(relay.addr, 9_000), Endpoint.of("10.9.9.9", 5_000))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs a softswitch on an interface is marked so."""
    for item in items:
        if "softswitch" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.netns)


@pytest.fixture(scope="module")
def capacity() -> int:
    """How many relay entries the softswitch takes; modules may have their own."""
    return 5_000


@pytest.fixture(scope="module")
def softswitch(capacity: int) -> Iterator[Softswitch]:
    """A softswitch at one end of a veth pair in a network namespace of its own. At the end it must not have crashed."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with namespace() as name, Softswitch(["in0"], namespace=name, capacity=capacity) as made:
        yield made
        made.stop()


@pytest.fixture(scope="module")
def running(softswitch: Softswitch) -> Iterator[Served]:
    with Plane(softswitch.target, bind=False) as plane, Wire(softswitch) as wire:
        yield Served(softswitch, plane, wire)


@pytest.fixture
async def served(running: Served) -> AsyncIterator[Served]:
    """The module's softswitch with empty tables."""
    assert running.softswitch.running, running.softswitch.log
    await running.reset()
    yield running
    await running.close()
