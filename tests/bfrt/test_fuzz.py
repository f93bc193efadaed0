"""Whatever is sent: an error code, never a crash, and the server goes on serving."""

from __future__ import annotations

import asyncio

import grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bfrt.conftest import Raw, Served
from tests.bfrt.messages import TABLES, details, insert
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

_KNOWN = sorted(table.id for table in TABLES)
_ACTIONS = sorted({action.id for table in TABLES for action in table.actions})
_OF_GARBAGE = {
    getattr(grpc.StatusCode, name) for name in ("INTERNAL", "NOT_FOUND", "UNKNOWN", "INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED")
}  # fmt: skip
small = st.sampled_from((0, 1, 2, 3, 4, 5, 6, 7, 65537, 65543, 65544, 65553, 65554, 2**32 - 1))
value = st.one_of(st.binary(max_size=17), st.sampled_from((b"\x00\x00\x00\x01", b"\x00\x50", bytes(16), bytes(8))))


@st.composite
def keys(draw: st.DrawFn) -> pb.TableKey:
    key = pb.TableKey()
    for number in draw(st.lists(small, max_size=5)):
        field = key.fields.add(field_id=number)
        kind = draw(st.integers(0, 5))
        if kind <= 1:
            field.exact.value = draw(value)
        elif kind == 2:
            field.ternary.value, field.ternary.mask = draw(value), draw(value)
        elif kind == 3:
            field.lpm.value, field.lpm.prefix_len = draw(value), draw(st.integers(-(2**31), 2**31 - 1))
        elif kind == 4:
            field.range.low, field.range.high = draw(value), draw(value)
    return key


@st.composite
def entities(draw: st.DrawFn) -> pb.Entity:
    out = pb.Entity()
    table = draw(st.one_of(st.sampled_from(_KNOWN), small))
    kind = draw(st.integers(0, 8))
    if kind == 0:
        out.table_usage.table_id = table
    elif kind == 1:
        out.table_attribute.table_id = table
        idle = out.table_attribute.idle_table
        idle.enable, idle.idle_table_mode = draw(st.booleans()), draw(st.integers(0, 3))
        idle.ttl_query_interval, idle.min_ttl, idle.max_ttl = draw(small), draw(small), draw(small)
    elif kind == 2:
        out.object_id.table_object.table_name = draw(st.sampled_from(("relay", "dst_addr", "nothing", "", "pipe.Ingress.media")))
        out.object_id.table_object.data_field_name.field = draw(st.text(max_size=5))
        out.object_id.table_object.data_field_name.action = draw(st.sampled_from(("", "relay_to", "x")))
    elif kind == 3:
        out.handle.table_id = table
        out.handle.key.CopyFrom(draw(keys()))
    else:
        entry = out.table_entry
        entry.table_id = table
        entry.is_default_entry = draw(st.booleans())
        where = draw(st.integers(0, 3))
        if where == 1:
            entry.handle_id = draw(small)
        elif where > 1:
            entry.key.CopyFrom(draw(keys()))
        entry.data.action_id = draw(st.one_of(st.sampled_from(_ACTIONS), small))
        for number in draw(st.lists(small, max_size=6)):
            field = entry.data.fields.add(field_id=number)
            form = draw(st.integers(0, 4))
            if form <= 1:
                field.stream = draw(value)
            elif form == 2:
                field.str_val = draw(st.sampled_from(("ENTRY_IDLE", "x", "")))
            elif form == 3:
                field.bool_val = True
            else:
                field.int_arr_val.val.extend((1, 2))
        entry.table_flags.key_only = draw(st.booleans())
        entry.table_flags.reset_stats = draw(st.booleans())
    return out


async def _ask(client: Raw, updates: list[pb.Update], atomicity: int) -> None:
    for call in (client.write(*updates, atomicity=atomicity), client.read(*(update.entity for update in updates))):
        try:
            await call
        except grpc.aio.AioRpcError as error:
            assert error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED), error
            if error.code() == grpc.StatusCode.UNKNOWN:
                # INTERNAL would be an exception that nobody thought of.
                assert 13 not in {code for code, _ in details(error)}, error


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(st.builds(pb.Update, type=st.integers(0, 7), entity=entities()), min_size=1, max_size=4), min_size=1, max_size=10),
    st.integers(0, 1),
    st.lists(st.binary(max_size=60), max_size=5),
)
def test_odd_updates_and_bytes(running: Served, batches: list[list[pb.Update]], atomicity: int, garbage: list[bytes]) -> None:
    async def scenario() -> None:
        await running.reset()
        try:
            client = await running.raw().connect()
            for batch in batches:
                await _ask(client, batch, atomicity)
            for data in garbage:
                for name, call in (("Write", client.channel.unary_unary("/bfrt_proto.BfRuntime/Write")), ("Read", client.channel.unary_stream("/bfrt_proto.BfRuntime/Read"))):
                    try:
                        if name == "Write":
                            await call(data)
                        else:
                            async for _ in call(data):
                                pass
                    except grpc.aio.AioRpcError as error:
                        assert error.code() in _OF_GARBAGE, error
            await client.write(pb.Update(type=pb.Update.DELETE, entity=pb.Entity(table_entry=pb.TableEntry(table_id=TABLES["relay"].id))))
            await client.write(insert(1))
            assert len([key for key in running.table if key.dst.version == 4]) == 1
            usage = await client.read(pb.Entity(table_usage=pb.TableUsage(table_id=TABLES["relay"].id)))
            assert usage.entities[0].table_usage.usage == 1
        finally:
            await running.close()

    asyncio.run(scenario())


async def test_no_answer_hides_an_internal_error(served: Served) -> None:
    """The codes above let INTERNAL pass for what is no protobuf; an update must never cause it."""
    client = await served.raw().connect()
    try:
        await client.write(*(pb.Update(type=kind, entity=pb.Entity(table_entry=pb.TableEntry(table_id=table, handle_id=1))) for kind in range(8) for table in _KNOWN))
    except grpc.aio.AioRpcError as error:
        assert {code for code, _ in details(error)} <= {0, 3, 12}
