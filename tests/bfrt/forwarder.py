"""A BF Runtime server that passes every call on to another one, as bytes; subclasses delay, fail or change calls on the way.

It knows nothing of the agent's code nor of the softswitch's: calls are taken apart with the protocol's own messages only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2

from tests.tools.bfrt._pb import bfruntime_pb2 as pb

DETAILS = "grpc-status-details-bin"
_SERVICE = "/bfrt_proto.BfRuntime/"
_ASKED = ("error_in_resp", "ignore_not_found", "deadline_sec", "deadline_nsec")  # what a client may ask for in a call's metadata
# A batch's errors come as one trailer, far beyond gRPC's usual limit.
OPTIONS = (
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 24), ("grpc.absolute_max_metadata_size", 1 << 24), ("grpc.default_authority", "localhost"),
)  # fmt: skip


class Forwarder:
    """The server. `writes` and `reads` count the calls that have arrived, `binds` the attempts to bind."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.writes = self.reads = self.binds = 0
        self._channel: grpc.aio.Channel | None = None

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """A Write; `data` and the result are serialised messages."""
        return await self.unary("Write", data, context)

    async def read(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """A Read; yields serialised messages."""
        try:
            async for response in self._onward.unary_stream(_SERVICE + "Read")(data, metadata=asked(context)):
                yield response
        except grpc.aio.AioRpcError as error:
            await pass_back(context, error)

    async def config(self, name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Get- or SetForwardingPipelineConfig, by name."""
        return await self.unary(name, data, context)

    async def stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """StreamChannel: two streams joined; each ends when the other does."""
        onward = self.new_stream()

        async def up() -> None:
            async for request in requests:
                await onward.write(request)
            await onward.done_writing()

        async def down() -> None:
            while (message := await onward.read()) is not grpc.aio.EOF:
                await context.write(message)

        going_up, coming_down = asyncio.create_task(up()), asyncio.create_task(down())
        try:
            await coming_down
        except grpc.aio.AioRpcError as error:
            await pass_back(context, error)
        finally:
            onward.cancel()
            for task in (going_up, coming_down):
                task.cancel()
            await asyncio.gather(going_up, coming_down, return_exceptions=True)

    async def unary(self, name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Pass a call on; an error ends the client's call with the same status and details."""
        try:
            return await self.onward(name, data, context)
        except grpc.aio.AioRpcError as error:
            await pass_back(context, error)
            raise AssertionError("abort returned") from error

    async def onward(self, name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """The server's answer to a unary call. Raises AioRpcError."""
        return await self._onward.unary_unary(_SERVICE + name)(data, metadata=asked(context))

    def new_stream(self) -> grpc.aio.StreamStreamCall:
        """A StreamChannel to the server."""
        return self._onward.stream_stream(_SERVICE + "StreamChannel")()

    @property
    def _onward(self) -> grpc.aio.Channel:
        assert self._channel is not None, "it does not serve"
        return self._channel

    @asynccontextmanager
    async def serve(self, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
        """Serve; yields HOST:PORT."""

        async def write(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.writes += 1
            return await self.write(data, context)

        async def read(data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            self.reads += 1
            async for response in self.read(data, context):
                yield response

        async def config(name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.binds += name.startswith("Set")
            return await self.config(name, data, context)

        self._channel = grpc.aio.insecure_channel(self.target, options=OPTIONS)
        server = grpc.aio.server(options=OPTIONS)
        handlers = {
            "Write": grpc.unary_unary_rpc_method_handler(write, None, None),
            "Read": grpc.unary_stream_rpc_method_handler(read, None, None),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(self.stream, None, None),
        }
        for name in ("SetForwardingPipelineConfig", "GetForwardingPipelineConfig"):
            handlers[name] = grpc.unary_unary_rpc_method_handler(partial(config, name), None, None)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bfrt_proto.BfRuntime", handlers),))
        port = server.add_insecure_port(address)
        await server.start()
        try:
            yield f"{address.rpartition(':')[0]}:{port}"
        finally:
            await server.stop(grace=0.1)
            await self._channel.close()


def asked(context: grpc.aio.ServicerContext) -> tuple[tuple[str, str], ...]:
    """The client's metadata that the server is to see."""
    return tuple((name, value) for name, value in context.invocation_metadata() or () if name in _ASKED)


async def pass_back(context: grpc.aio.ServicerContext, error: grpc.aio.AioRpcError) -> None:
    """End a call as the server has ended it."""
    trailing = tuple((name, value) for name, value in error.trailing_metadata() or () if name == DETAILS)
    await context.abort(error.code(), error.details() or "", trailing_metadata=trailing)


def errors_of(error: grpc.aio.AioRpcError) -> list[pb.Error] | None:
    """Each update's error of a failed Write; None where the whole call failed."""
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS:
            found = []
            for detail in status_pb2.Status.FromString(value).details:
                message = pb.Error()
                detail.Unpack(message)
                found.append(message)
            return found
    return None


async def fail_updates(context: grpc.aio.ServicerContext, errors: list[pb.Error]) -> None:
    """End a Write with one error for each update, as the protocol has it."""
    status = status_pb2.Status(code=2, message="Write Error Status")
    for error in errors:
        detail = any_pb2.Any()
        detail.Pack(error)
        status.details.append(detail)
    await context.abort(grpc.StatusCode.UNKNOWN, "Write Error Status", trailing_metadata=((DETAILS, status.SerializeToString()),))
