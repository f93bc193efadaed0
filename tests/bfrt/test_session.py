"""Subscribing, binding and fetching the schema: the answers that P4 Studio's own server gives."""

from __future__ import annotations

import asyncio
import time
import contextlib
import json

import grpc
import pytest

from tests.bfrt.conftest import OPTIONS, Raw, Served, other
from tests.bfrt.messages import entity, insert
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

Code = grpc.StatusCode


async def test_the_order_of_p4_studios_client(served: Served) -> None:
    client = served.raw()
    reply = await client.subscribe()
    assert reply.WhichOneof("update") == "subscribe" and reply.subscribe.HasField("status") and reply.subscribe.status.code == 0
    config = await client.stub.GetForwardingPipelineConfig(pb.GetForwardingPipelineConfigRequest(client_id=client.client_id))
    assert [c.p4_name for c in config.config] == ["relay"]
    assert [list(p.pipe_scope) for p in config.config[0].profiles] == [[0, 1, 2, 3]]
    assert "tables" in json.loads(config.config[0].bfruntime_info)
    fixed = {table["name"]: table["id"] for table in json.loads(config.non_p4_config.bfruntime_info)["tables"]}
    assert (fixed["$PORT"], fixed["$pre.mgid"], fixed["$pre.node"], fixed["$mirror.cfg"]) == (0xFF010001, 0xFF020001, 0xFF020002, 0xFF040001)
    await client.bind("relay")
    await client.write(insert(1))


async def test_repeated_subscriptions_are_ignored(served: Served) -> None:
    client = served.raw()
    await client.subscribe()
    for _ in range(4):
        request = pb.StreamMessageRequest(client_id=client.client_id)
        request.subscribe.SetInParent()
        await client.stream.write(request)
    end = pb.StreamMessageRequest(client_id=client.client_id)
    end.digest_ack.digest_id = 1  # what the stream ends with comes after all answers
    await client.stream.write(end)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stream.read()
    assert caught.value.code() == Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("names", "unknown", "device", "code"),
    [
        (("relay",), True, 0, Code.UNAVAILABLE),
        (("other",), False, 0, Code.NOT_FOUND),
        ((), False, 0, Code.INVALID_ARGUMENT),
        (("relay", "relay"), False, 0, Code.INVALID_ARGUMENT),
        (("relay",), False, 1, Code.NOT_FOUND),
    ],
)
async def test_bind_refused(served: Served, names: tuple[str, ...], unknown: bool, device: int, code: grpc.StatusCode) -> None:
    client = served.raw()
    await client.subscribe()
    deadline = time.monotonic() + 60
    while True:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.bind(*names, client_id=9_999_999 if unknown else None, device_id=device)
        # The server may not have seen yet that the client of the test before is gone.
        if caught.value.code() != Code.ALREADY_EXISTS or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    assert caught.value.code() == code


async def test_one_client_owns_the_program_until_its_stream_ends(served: Served) -> None:
    first, second = await served.raw().connect(), served.raw()
    await second.subscribe()
    for client in (first, second):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.bind("relay")
        assert caught.value.code() == Code.ALREADY_EXISTS
    await first.stream.done_writing()
    assert await first.stream.read() is grpc.aio.EOF
    await second.bind("relay")
    await first.subscribe()  # its client id is free again


async def test_a_used_client_id_ends_the_second_stream_only(served: Served) -> None:
    first = await served.raw(77).connect()
    second = served.raw(77)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await second.subscribe()
    assert caught.value.code() == Code.INVALID_ARGUMENT
    await first.write(insert(1))


async def test_digest_ack_ends_the_stream_and_frees_the_binding(served: Served) -> None:
    client = await served.raw().connect()
    request = pb.StreamMessageRequest(client_id=client.client_id)
    request.digest_ack.digest_id = 1
    await client.stream.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stream.read()
    assert caught.value.code() == Code.UNIMPLEMENTED
    await served.raw().connect()


async def test_subscribed_but_unbound_has_no_details(served: Served) -> None:
    client = served.raw()
    await client.subscribe()
    for call in (client.write(insert(1)), client.read(entity())):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == Code.UNKNOWN and caught.value.details().startswith("Unable to get bound_program")
        assert not [name for name, _ in caught.value.trailing_metadata() if name == "grpc-status-details-bin"]


async def test_independent_clients_name_the_program(served: Served) -> None:
    client = served.raw()
    await client.stub.GetForwardingPipelineConfig(pb.GetForwardingPipelineConfigRequest(client_id=client.client_id))
    await client.subscribe()
    for call in (client.write(insert(1), p4_name="other"), client.read(entity(), p4_name="other")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == Code.NOT_FOUND
    await client.write(insert(1), p4_name="relay")
    assert len((await client.read(entity(1), p4_name="relay")).entities) == 1


async def test_the_name_lets_another_client_write_beside_the_owner(served: Served) -> None:
    await served.raw().connect()
    other = served.raw()
    await other.subscribe()
    await other.write(insert(1), p4_name="relay")
    assert len(served.table) == 1


async def test_wrong_device(served: Served) -> None:
    client = await served.raw().connect()
    for call in (client.write(insert(1), target=pb.TargetDevice(device_id=1)), client.read(entity(), target=pb.TargetDevice(device_id=1))):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == Code.INVALID_ARGUMENT


async def test_clear_all_tables(served: Served) -> None:
    client, watcher = await served.raw().connect(), served.raw()
    await watcher.subscribe()
    await client.write(insert(1), insert(2))
    await client.clear_all_tables()
    for stream in (client.stream, watcher.stream):
        kinds = [(await stream.read()).set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type for _ in range(2)]
        assert kinds == [pb.WARM_INIT_STARTED, pb.WARM_INIT_FINISHED]
    assert not served.table
    await client.write(insert(3))  # still bound


async def test_a_warm_start_in_two_steps_keeps_what_is_written_between(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    Request = pb.SetForwardingPipelineConfigRequest
    begin = Request(client_id=client.client_id, action=Request.VERIFY_AND_WARM_INIT_BEGIN, config=[pb.ForwardingPipelineConfig(p4_name="relay")])
    await client.stub.SetForwardingPipelineConfig(begin)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.SetForwardingPipelineConfig(begin)
    assert caught.value.code() == Code.UNAVAILABLE
    await client.write(insert(2))
    end = Request(client_id=client.client_id, action=Request.WARM_INIT_END)
    await client.stub.SetForwardingPipelineConfig(end)
    assert [key.dst.port for key in served.table] == [30_002]
    for request, code in ((end, Code.UNAVAILABLE), (Request(client_id=client.client_id, action=Request.RECONCILE_AND_WARM_INIT_END), Code.UNIMPLEMENTED)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.SetForwardingPipelineConfig(request)
        assert caught.value.code() == code


async def test_verify_of_another_program_is_refused(served: Served) -> None:
    client = await served.raw().connect()
    Request = pb.SetForwardingPipelineConfigRequest
    await client.stub.SetForwardingPipelineConfig(Request(client_id=client.client_id, action=Request.VERIFY, config=[pb.ForwardingPipelineConfig(p4_name="relay")]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.SetForwardingPipelineConfig(Request(client_id=client.client_id, action=Request.VERIFY, config=[pb.ForwardingPipelineConfig(p4_name="x")]))
    assert caught.value.code() == Code.INVALID_ARGUMENT


async def test_a_stop_that_cuts_calls_off_is_orderly() -> None:
    """SIGTERM while clients read, write and wait: every call ends, the exit code is 0, and stderr has no traceback (stop() looks)."""
    with Softswitch(capacity=10_000) as softswitch:
        with Plane(softswitch.target, bind=False) as plane:
            assert plane.insert([other(number) for number in range(10_000)]) == [None] * 10_000
        async with grpc.aio.insecure_channel(softswitch.target, options=OPTIONS) as channel:
            client = await Raw(channel, 4713).connect()
            calls = [asyncio.ensure_future(client.read(entity())) for _ in range(4)]
            calls += [asyncio.ensure_future(client.write(*(insert(number) for number in range(2_000)))) for _ in range(4)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            await asyncio.to_thread(softswitch.stop)
            ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
            assert all(isinstance(each, (pb.ReadResponse, pb.WriteResponse, grpc.aio.AioRpcError)) for each in ended), ended
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await asyncio.wait_for(client.stream.read(), 60) is grpc.aio.EOF
        assert "schedule_rpc" not in softswitch.log
