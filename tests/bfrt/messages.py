"""Messages as P4 Studio's client sends them, and the tables that they are about."""

from __future__ import annotations

import grpc
from google.rpc import status_pb2

from tests.softswitch.schema import load
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

TABLES = load().tables
RELAY, RELAY6, MEDIA = TABLES["relay"], TABLES["relay6"], TABLES["media"]
TO = RELAY.actions["relay_to"]
TTL = RELAY.data["$ENTRY_TTL"].id


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


def delete(number: int) -> pb.Update:
    return update(pb.Update.DELETE, number, data=False)


def entity(number: int | None = None, *, table: int = RELAY.id, default: bool = False) -> pb.Entity:
    """A read of one relay entry, or of all."""
    out = pb.Entity()
    out.table_entry.table_id = table
    out.table_entry.is_default_entry = default
    out.table_entry.table_flags.from_hw = True
    if number is not None:
        set_key(out.table_entry.key, key_of(number))
    return out
