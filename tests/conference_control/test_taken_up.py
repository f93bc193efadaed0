"""Relay entries of two-party conferences that are found when everything is made sure of, while a delete of theirs is in doubt."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import grpc
import pytest

from shunt.bfrt import client as bfrt_client
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.conference.control.model import Book
from shunt.conference.control.writer import Broken, Writer
from shunt.tables import doubt, relay_table
from tests.bfrt.fake_switch import FakeSwitch, Refused, running
from tests.bfrt.test_relay_table import connected, until
from tests.conference_control.test_control import book, seat  # noqa: F401
from tests.p4.bfrt_bmv2 import FIXED
from tests.p4.program import GENERATED

PROGRAM = "conference-lr.tofino2.bf-rt.json"


class DeafSwitch(FakeSwitch):
    """deaf: deletes of relay entries get no answer. late: they are carried out so many seconds later all the same."""

    deaf = False
    late: float | None = None

    def __init__(self) -> None:
        super().__init__((GENERATED / PROGRAM).read_bytes(), fixed=FIXED)
        self.left: list[asyncio.Task[None]] = []
        prune = self.table("$pre.prune")
        for number in range(1, 3):
            self.entries[prune.id][((next(iter(prune.key)).id, number.to_bytes(2, "big")),)] = pb.TableData()

    async def Write(self, request: pb.WriteRequest, context: grpc.aio.ServicerContext) -> pb.WriteResponse:
        relay = self.table("pipe.Ingress.relay").id
        if self.deaf and any(update.type == pb.Update.DELETE and update.entity.table_entry.table_id == relay for update in request.updates):
            if self.late is not None:
                self.left.append(asyncio.create_task(self._later(request, self.late)))
            await asyncio.sleep(3600)
        return await super().Write(request, context)

    async def _later(self, request: pb.WriteRequest, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for update in request.updates:
            with contextlib.suppress(Refused):  # the second of two finds nothing, and nobody waits for the answer
                self._write(update)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of tenths of seconds, and looks that begin when everything has been made sure of."""
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=0.2, patience=1.0))
    monkeypatch.setattr(relay_table, "_EXTENSION", 0.2)
    monkeypatch.setattr(doubt, "LOOKS", (2.0, 0.3, 0.3))
    monkeypatch.setattr(bfrt_client, "_HUNG", 60.0)


@pytest.mark.parametrize("at_once", [False, True], ids=["when the delete is given up", "while the delete is under way"])
@pytest.mark.parametrize("late", [None, 2.2], ids=["never done", "done late"])
async def test_an_entry_whose_delete_had_no_answer_stays_when_it_is_wanted_again(book: Book, at_once: bool, late: float | None) -> None:  # noqa: F811
    """A third participant came, so the two were to be relayed no more; that was not answered; the third has left."""
    switch = DeafSwitch()
    async with running(switch) as address, connected(address) as table:
        writer = Writer(table, book)
        assert await writer.adopt([]) == []
        for number in (1, 2):
            seat(book, number)
        await writer.bring(book.get("room").meeting())
        relayed = await table.entries()
        assert len(relayed) == 2
        before = set(switch.held("pipe.Ingress.relay"))
        switch.deaf, switch.late = True, late
        seat(book, 3)
        with pytest.raises(Broken):
            await writer.bring(book.get("room").meeting())
        if not at_once:
            await until(lambda: not any(key in table._queues for key in relayed))
        switch.deaf = False
        book.leave("room", "p3")
        assert any(key in table.doubts for key in relayed), "or nothing is tested"
        assert any(key in table._queues for key in relayed) is at_once and set(switch.held("pipe.Ingress.relay")) == before
        assert await writer.adopt([book.get("room").meeting()]) == []
        assert await table.entries() == relayed
        await until(lambda: not len(table.doubts))
        assert await table.entries() == relayed and writer.inside.keys() >= {("relay", key) for key in relayed}
        assert table.counters.repairs == (0 if late is None else 1)
