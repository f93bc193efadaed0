"""A BF Runtime server that stands before another one and fails, delays, reorders and half-does what it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from shunt.bfrt._pb import bfruntime_pb2 as pb
from tests.bfrt.forwarder import Forwarder, errors_of, fail_updates, pass_back


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


class ChaosTarget(Forwarder):
    """The server. `odds` may be changed at any time; `mishaps` counts what was done to the client."""

    def __init__(self, target: str, dice: random.Random) -> None:
        super().__init__(target)
        self.odds = Odds()
        self.dice = dice
        self.mishaps: dict[str, int] = {}
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
                await self.onward("Write", request.SerializeToString(), context)
            except grpc.aio.AioRpcError as error:
                found = errors_of(error)
                if found is None:
                    await pass_back(context, error)
                for place, each in zip(done, found or ()):
                    errors[place] = each
        await self._hold()
        if self._happens("lose_answer"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "chaos: the answer got lost")
        if any(error.canonical_code for error in errors):
            await fail_updates(context, errors)
        return b""

    async def read(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await self._hold()
        async for response in super().read(data, context):
            yield response

    async def stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        ended = asyncio.Event()
        self._streams.add(ended)
        joined, hung_up = asyncio.create_task(super().stream(requests, context)), asyncio.create_task(ended.wait())
        try:
            await asyncio.wait((joined, hung_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(ended)
            for task in (joined, hung_up):
                task.cancel()
            await asyncio.gather(joined, hung_up, return_exceptions=True)
        if ended.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "chaos: hung up")
