"""A BF Runtime server that stands before another one and fails, delays, reorders and half-does what it is told.

It knows nothing of the agent's code: calls are taken apart with the protocol's own messages only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2

from shunt.bfrt._pb import bfruntime_pb2 as pb

_SERVICE = "/bfrt_proto.BfRuntime/"
_DETAILS = "grpc-status-details-bin"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 24), ("grpc.absolute_max_metadata_size", 1 << 24),
)


@dataclass
class Odds:
    """Chances, 0 to 1, of what goes wrong with a Write; delay is the most seconds it is held, before and after."""

    refuse: float = 0.0  # not done, and the call fails
    lose_answer: float = 0.0  # done, and the call fails
    half: float = 0.0  # some updates of the batch are not done, and say "try again"
    delay: float = 0.0
    hang_up: float = 0.0  # with a Write: the client's connection is gone, its binding too

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.refuse = self.lose_answer = self.half = self.delay = self.hang_up = 0.0


class ChaosTarget:
    """The server. `odds` may be changed at any time; `mishaps` counts what was done to the client."""

    def __init__(self, target: str, dice: random.Random) -> None:
        self.odds = Odds()
        self.dice = dice
        self.mishaps: dict[str, int] = {}
        self.port = 0
        self._target = target
        self._channel: grpc.aio.Channel | None = None
        self._streams: set[asyncio.Event] = set()

    def _happens(self, what: str) -> bool:
        if self.dice.random() >= getattr(self.odds, what):
            return False
        self.mishaps[what] = self.mishaps.get(what, 0) + 1
        return True

    async def _hold(self) -> None:
        if self.odds.delay:
            await asyncio.sleep(self.dice.random() * self.odds.delay)

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._hold()
        if self._happens("hang_up"):
            for ended in self._streams:
                ended.set()
        if self._happens("refuse"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "chaos: refused")
        request = pb.WriteRequest.FromString(data)
        left_out: set[int] = set()
        if self._happens("half"):
            left_out = {place for place in range(len(request.updates)) if self.dice.random() < 0.5}
        done = [place for place in range(len(request.updates)) if place not in left_out]
        errors: list[pb.Error] = [pb.Error() for _ in request.updates]
        for place in left_out:
            errors[place].canonical_code, errors[place].message = 14, "chaos: not now"
        if done:
            kept = [request.updates[place] for place in done]
            del request.updates[:]
            request.updates.extend(kept)
            try:
                await self._unary("Write")(request.SerializeToString())
            except grpc.aio.AioRpcError as error:
                found = _errors(error)
                if found is None:
                    await context.abort(error.code(), error.details() or "", trailing_metadata=tuple(error.trailing_metadata() or ()))
                for place, each in zip(done, found):
                    errors[place] = each
        await self._hold()
        if self._happens("lose_answer"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "chaos: the answer got lost")
        if any(error.canonical_code for error in errors):
            status = status_pb2.Status(code=2, message="Write Error Status")
            for error in errors:
                detail = any_pb2.Any()
                detail.Pack(error)
                status.details.append(detail)
            await context.abort(grpc.StatusCode.UNKNOWN, "Write Error Status", trailing_metadata=((_DETAILS, status.SerializeToString()),))
        return b""

    async def read(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        assert self._channel is not None
        await self._hold()
        try:
            async for response in self._channel.unary_stream(_SERVICE + "Read")(data):
                yield response
        except grpc.aio.AioRpcError as error:
            await _pass(context, error)

    async def config(self, name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return await self._unary(name)(data)
        except grpc.aio.AioRpcError as error:
            await _pass(context, error)
            raise AssertionError("unreachable") from error

    async def stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        assert self._channel is not None
        ended = asyncio.Event()
        self._streams.add(ended)
        onward = self._channel.stream_stream(_SERVICE + "StreamChannel")()

        async def up() -> None:
            async for request in requests:
                await onward.write(request)

        async def down() -> None:
            while (message := await onward.read()) is not grpc.aio.EOF:
                await context.write(message)

        tasks = [asyncio.create_task(work) for work in (up(), down(), ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(ended)
            for task in tasks:
                task.cancel()
            onward.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if ended.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "chaos: hung up")

    def _unary(self, name: str) -> grpc.aio.UnaryUnaryMultiCallable:
        assert self._channel is not None
        return self._channel.unary_unary(_SERVICE + name)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve; yields HOST:PORT."""
        self._channel = grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            "Write": grpc.unary_unary_rpc_method_handler(self.write, None, None),
            "Read": grpc.unary_stream_rpc_method_handler(self.read, None, None),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(self.stream, None, None),
        }
        for name in ("SetForwardingPipelineConfig", "GetForwardingPipelineConfig"):
            handlers[name] = grpc.unary_unary_rpc_method_handler(partial(self.config, name), None, None)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bfrt_proto.BfRuntime", handlers),))
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{self.port}"
        finally:
            await server.stop(grace=0.1)
            await self._channel.close()


async def _pass(context: grpc.aio.ServicerContext, error: grpc.aio.AioRpcError) -> None:
    trailing = tuple((key, value) for key, value in error.trailing_metadata() or () if key == _DETAILS)
    await context.abort(error.code(), error.details() or "", trailing_metadata=trailing)


def _errors(error: grpc.aio.AioRpcError) -> list[pb.Error] | None:
    """Each update's error of a failed Write; None where the whole call failed."""
    for name, value in error.trailing_metadata() or ():
        if name == _DETAILS:
            found = []
            for detail in status_pb2.Status.FromString(value).details:
                message = pb.Error()
                detail.Unpack(message)
                found.append(message)
            return found
    return None
