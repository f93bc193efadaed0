"""A softswitch's BF Runtime server over a double of the kernel part, and a raw client to it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest
from google.rpc import status_pb2

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt._pb import bfruntime_pb2_grpc
from shunt_softswitch import schema
from shunt_softswitch.server import serve
from shunt_softswitch.service import BfRuntimeService
from tests.bfrt.fake_dataplane import FakeDataPlane

_client_ids = itertools.count(1)
# P4 Studio's client's own: a batch's errors come as one trailer, far beyond gRPC's usual limit.
_OPTIONS = (("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30), ("grpc.max_metadata_size", 1 << 30))


class Raw:
    """Sends protocol messages as P4 Studio's client does, field by field."""

    def __init__(self, channel: grpc.aio.Channel, client_id: int) -> None:
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
        await self.subscribe(**wants)
        await self.bind("relay")
        return self

    def write_request(self, *updates: pb.Update, **fields: object) -> pb.WriteRequest:
        request = pb.WriteRequest(client_id=self.client_id, updates=updates, **fields)
        if "target" not in fields:
            request.target.pipe_id, request.target.direction, request.target.prsr_id = 0xFFFF, 0xFF, 0xFF
        return request

    async def write(self, *updates: pb.Update, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> pb.WriteResponse:
        return await self.stub.Write(self.write_request(*updates, **fields), metadata=metadata)

    async def read(self, *entities: pb.Entity, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> pb.ReadResponse:
        """The one response. Raises AioRpcError, with what was found in its `found` attribute."""
        request = pb.ReadRequest(client_id=self.client_id, entities=entities, **fields)
        responses: list[pb.ReadResponse] = []
        try:
            async for response in self.stub.Read(request, metadata=metadata):
                responses.append(response)
        except grpc.aio.AioRpcError as error:
            error.found = responses  # type: ignore[attr-defined]
            raise
        assert len(responses) == 1
        return responses[0]


@dataclass
class Served:
    """A running server."""

    service: BfRuntimeService
    dataplane: FakeDataPlane
    port: int
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def raw(self, client_id: int | None = None) -> Raw:
        channel = grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        self.channels.append(channel)
        return Raw(channel, next(_client_ids) if client_id is None else client_id)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    dataplane = FakeDataPlane(capacity=5_000)
    service = BfRuntimeService(dataplane, schema.load(dataplane.capacity))
    async with serve(service, ["127.0.0.1:0"]) as (port,):
        running = Served(service, dataplane, port)
        yield running
        for channel in running.channels:
            await channel.close()


def details(error: grpc.aio.AioRpcError) -> list[tuple[int, int]]:
    """(canonical_code, code) of every error in a failed call's details; asserts the envelope's form."""
    values = [value for name, value in error.trailing_metadata() if name == "grpc-status-details-bin"]
    assert len(values) == 1, error
    status = status_pb2.Status.FromString(values[0])
    assert status.code == 2 and status.message == error.details()
    found = []
    for detail in status.details:
        assert detail.type_url == "type.googleapis.com/bfrt_proto.Error"
        message = pb.Error()
        assert detail.Unpack(message)
        assert message.space == ""
        found.append((message.canonical_code, message.code))
    return found


TABLES = schema.load(5_000).schema.tables
RELAY, RELAY6, MEDIA = TABLES["relay"], TABLES["relay6"], TABLES["media"]
TO = RELAY.actions["relay_to"]
TTL = RELAY.data["$ENTRY_TTL"].id


def key_of(number: int) -> list[tuple[int, bytes]]:
    """A key in the order in which P4 Studio's client sends it: by field name."""
    return [(2, b"\x0a\x5b\x01\x01"), (1, (0x0B000000 + number).to_bytes(4, "big")), (4, (30_000 + number).to_bytes(2, "big")), (3, (4_000 + number % 60_000).to_bytes(2, "big"))]


def set_key(message: pb.TableKey, fields: list[tuple[int, bytes]]) -> None:
    for number, value in fields:
        field = message.fields.add()
        field.field_id, field.exact.value = number, value


def update(kind: int, number: int | None, *, port: int = 5_000, action: int | None = TO.id, ttl: int | None = 30_000, data: bool = True) -> pb.Update:
    """An update of the relay table with relay_to to 10.9.9.9:port, as P4 Studio's client sends it."""
    out = pb.Update(type=kind)
    entry = out.entity.table_entry
    entry.table_id = RELAY.id
    if number is not None:
        set_key(entry.key, key_of(number))
    if data and kind != pb.Update.DELETE:
        if ttl is not None:
            entry.data.fields.add(field_id=TTL, stream=ttl.to_bytes(4, "big"))
        if action is not None:
            entry.data.action_id = action
            entry.data.fields.add(field_id=1, stream=b"\x0a\x09\x09\x09")
            entry.data.fields.add(field_id=2, stream=port.to_bytes(2, "big"))
            entry.data.fields.add(field_id=3, stream=(7_000).to_bytes(2, "big"))
    return out


def insert(number: int, **options: object) -> pb.Update:
    return update(pb.Update.INSERT, number, **options)  # type: ignore[arg-type]


def entity(number: int | None = None, *, table: int = RELAY.id, default: bool = False) -> pb.Entity:
    """A read of one relay entry, or of all."""
    out = pb.Entity()
    out.table_entry.table_id = table
    out.table_entry.is_default_entry = default
    out.table_entry.table_flags.from_hw = True
    if number is not None:
        set_key(out.table_entry.key, key_of(number))
    return out
