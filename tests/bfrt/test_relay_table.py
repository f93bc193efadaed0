"""The agent's relay table against a served data plane: results, order, retries, connections that come and go."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtUnavailable
from shunt.net import Endpoint, FiveTuple
from shunt.tables import relay_table
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, StreamStats
from shunt.tables.operation import Haste
from shunt.tables.relay_table import DataPlaneUnavailable, RelayTable
from tests.bfrt.conftest import Served
from tests.bfrt.forwarder import Forwarder, fail_updates
from tests.bfrt.messages import RELAY, insert, update
from tests.bfrt.traffic import rtp
from tests.lab.ports import free_port
from tests.softswitch.schema import document


def entry(number: int, **changes: object) -> RelayEntry:
    relay = Endpoint(b"\x0a\x5b\x01\x01", 10_000 + number)
    key = FiveTuple(Endpoint((0x0B000000 + number).to_bytes(4, "big"), 4_000), relay)
    return replace(RelayEntry(key, Endpoint(relay.addr, 9_000), Endpoint.of("10.9.9.9", 5_000)), **changes)


def entry6(number: int) -> RelayEntry:
    key = FiveTuple(Endpoint.of("2001:db8::1", 1 + number), Endpoint.of("2001:db8::2", 2))
    return RelayEntry(key, Endpoint.of("10.1.1.1", 3), Endpoint.of("10.2.2.2", 4), 5_000, 46)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def connected(target: str, **options: object) -> AsyncIterator[RelayTable]:
    table = RelayTable(target, client_id=os.getpid(), **options)  # type: ignore[arg-type]
    up = asyncio.Event()
    table.on_up = up.set
    await table.start()
    try:
        await asyncio.wait_for(up.wait(), 30)
        assert table.connected and table.last_error == ""
        yield table
    finally:
        await table.close()


SSRC = 0xCAFE
COUNTED = StreamStats(6, 285, None, 5, 1, 1, None, SSRC, 2)  # of busy()


def busy(served: Served, key: FiveTuple) -> None:
    """Packets of which every statistic counts some: of 11 sequence numbers one comes late, one twice and six never; two are of another source."""
    served.send(key, *(rtp(SSRC, seq, 12 + 3 * number) for number, seq in enumerate((10, 11, 13, 20, 12, 20))))
    for _ in range(2):
        served.send(key._replace(src=key.src.next_port()), rtp(SSRC, 21))


def lasting(stats: StreamStats | None) -> StreamStats:
    """What of statistics does not change with time: no idle time and no jitter, which have to be there."""
    assert stats is not None and stats.idle_ms is not None and stats.jitter_us is not None
    return replace(stats, idle_ms=None, jitter_us=None)


def packets(served: Served, key: FiveTuple) -> int:
    """How many packets an entry has counted."""
    return served.plane.stats([key])[key].packets


@pytest.fixture
async def table(served: Served) -> AsyncIterator[RelayTable]:
    async with connected(served.target) as table:
        yield table


async def test_in_changed_read_and_out(served: Served, table: RelayTable) -> None:
    first = entry(1)
    assert (await table.insert(first)).outcome is Outcome.INSTALLED
    assert served.table == {first.key: first}
    second = replace(first, dst=Endpoint.of("10.7.7.7", 1), src=Endpoint.of("10.6.6.6", 2), dscp=0)
    busy(served, first.key)
    assert (await table.place((), [second]))[0].outcome is Outcome.INSTALLED
    assert await table.entries() == served.table == {first.key: second}
    for found in (await table.stats([first.key, entry(2).key]), await table.stats(None)):
        assert found.keys() == {first.key} and lasting(found[first.key]) == COUNTED
    result, last = await table.delete(first.key)
    assert result.outcome is Outcome.REMOVED and lasting(last) == COUNTED
    result, last = await table.delete(first.key)
    assert result.outcome is Outcome.ABSENT and result.ok and last is None
    assert await table.entries() == {}


async def test_ipv6_and_between_the_versions(served: Served, table: RelayTable) -> None:
    to6 = replace(entry(1), src=Endpoint.of("2001:db8::5", 1), dst=Endpoint.of("2001:db8::6", 2))
    entries = [entry6(1), to6, replace(entry6(2), src=entry6(2).key.dst, dst=entry6(2).key.src, dscp=None)]
    assert all(result.ok for result in await table.insert_many(entries))
    found = await table.entries()  # with the time that is left to each
    assert all(0 < found[e.key].ttl_ms <= e.ttl_ms for e in entries)
    assert {key: replace(one, ttl_ms=0) for key, one in found.items()} == {e.key: replace(e, ttl_ms=0) for e in entries}
    assert served.table == {e.key: e for e in entries}
    assert set(await table.stats([e.key for e in entries])) == {e.key for e in entries} == set(await table.stats(None))


async def test_statistics_without_rtp_are_unknown_not_zero(served: Served, table: RelayTable) -> None:
    await table.insert(entry(1))
    served.send(entry(1).key, *[b"none"] * 5)
    found = (await table.stats(None))[entry(1).key]
    assert found.idle_ms is not None and replace(found, idle_ms=None) == StreamStats(5, 5 * 32, None, None, None, None, None, None, 0)


async def test_what_is_there_is_modified_and_what_is_gone_put_in(served: Served, table: RelayTable) -> None:
    await table.insert(entry(1))
    served.send(entry(1).key, *[rtp()] * 7)
    other = entry(1, dst=Endpoint.of("10.5.5.5", 5))
    assert (await table.insert(other)).outcome is Outcome.INSTALLED
    assert served.table[other.key] == other and packets(served, other.key) == 7
    assert (await table.place((), [entry(2)]))[0].outcome is Outcome.INSTALLED
    assert served.table[entry(2).key] == entry(2)


async def test_each_operation_has_its_own_result(served: Served, table: RelayTable) -> None:
    served.fill(room=3)
    bad = entry(2, dscp=64)
    mixed = replace(entry(5), key=FiveTuple(Endpoint.of("2001:db8::1", 1), Endpoint.of("10.0.0.1", 1)))
    entries = [entry(1), bad, entry(3), mixed, entry(4), entry(6), replace(entry(7), dst=Endpoint.of("2001:db8::1", 1))]
    results = await table.insert_many(entries)
    assert [result.outcome.name for result in results] == ["INSTALLED", "REJECTED", "INSTALLED", "REJECTED", "INSTALLED", "TABLE_FULL", "REJECTED"]
    assert results[1].detail and "mixes IP versions" in results[3].detail and results[6].detail
    assert set(served.own) == {entry(n).key for n in (1, 3, 4)}


async def test_new_ones_and_changed_ones_go_together_and_each_has_its_own_result(served: Served, table: RelayTable) -> None:
    assert all(result.ok for result in await table.insert_many([entry(1), entry(2)]))
    for number in (1, 2):
        served.send(entry(number).key, *[rtp()] * 7)
    before = table.counters.batches
    new = [entry(3), entry(4, dscp=64), entry(5)]
    changed = [entry(1, dscp=64), entry(2, dst=Endpoint.of("10.5.5.5", 5)), entry(6)]
    results = await table.place(new, changed)
    assert [result.outcome.name for result in results] == ["INSTALLED", "REJECTED", "INSTALLED", "REJECTED", "INSTALLED", "INSTALLED"]
    assert served.table == {e.key: e for e in (entry(1), changed[1], entry(3), entry(5), entry(6))}
    assert [packets(served, entry(n).key) for n in (1, 2, 3)] == [7, 7, 0], "a changed one keeps its counters"
    assert table.counters.batches == before + 2, "one batch for all, and one to put in what was gone"
    assert await table.place() == [] and await table.delete_many([]) == []


async def test_many_callers_share_batches(served: Served) -> None:
    way = Forwarder(served.target)
    async with way.serve() as target, connected(target) as table:
        before = way.writes
        results = await asyncio.gather(*(table.insert(entry(n)) for n in range(500)))
        assert all(result.ok for result in results) and len(served.table) == 500
        assert way.writes == before + 1


async def test_operations_on_one_key_keep_their_order(served: Served, table: RelayTable) -> None:
    """Whatever a batch holds and however the target delays, the last operation on a key wins."""
    operations: list[Awaitable[object]] = []
    for number in range(40):
        key = entry(number % 4).key
        operations.append(table.insert(entry(number % 4, dst=Endpoint.of("10.0.0.1", 1 + number))))
        if number % 3 == 0:
            operations.append(table.delete(key))
    results = await asyncio.gather(*operations)
    assert all((result[0] if isinstance(result, tuple) else result).ok for result in results)  # type: ignore[union-attr]
    # 36 and 39 were deleted again, and they were the last of their keys.
    assert {key.dst.port - 10_000: e.dst.port for key, e in served.table.items()} == {1: 38, 2: 39}


async def test_deletes_are_not_overtaken_by_statistics(served: Served, table: RelayTable) -> None:
    await table.insert_many([entry(n) for n in range(2_500)])
    for n in range(2_500):
        served.send(entry(n).key, *[rtp()] * (1 + n % 4))
    found = await table.delete_many([entry(n).key for n in range(2_500)])
    assert [stats.packets for _, stats in found if stats is not None] == [1 + n % 4 for n in range(2_500)]
    assert not served.table


class Busy(Forwarder):
    """A target that fails the updates of the next `left` writes."""

    left = 0

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if self.left > 0:
            self.left -= 1
            await fail_updates(context, [pb.Error(canonical_code=14, message="busy")] * len(pb.WriteRequest.FromString(data).updates))
        return await super().write(data, context)


async def test_a_busy_target_is_asked_again(served: Served) -> None:
    way = Busy(served.target)
    async with way.serve() as target, connected(target) as table:
        way.left = 3
        assert (await table.insert(entry(1))).outcome is Outcome.INSTALLED
        assert table.counters.retries == 3


async def test_a_target_that_stays_busy_is_unavailable(served: Served) -> None:
    way = Busy(served.target)
    async with way.serve() as target, connected(target) as table:
        way.left = 99
        result = await table.insert(entry(1))
        assert result.outcome is Outcome.UNAVAILABLE and not result.ok and "busy" in result.detail
        way.left = 0


async def test_no_answer_is_not_installed(served: Served, table: RelayTable) -> None:
    """The target applies the write, but its answer never comes."""
    write = table._client.write

    async def lost(updates: list[bytes], **options: object) -> object:
        await write(updates, timeout=5)
        raise BfrtUnavailable("the answer was lost")

    table._client.write = lost  # type: ignore[method-assign,assignment]
    result = await table.insert(entry(1))
    assert result.outcome is Outcome.UNAVAILABLE and "the answer was lost" in result.detail
    assert entry(1).key in served.table


async def test_an_answer_that_is_lost_once_is_asked_for_again(served: Served, table: RelayTable) -> None:
    """The repeated insert finds its entry there, which is as good as an answer."""
    write = table._client.write
    losses = iter((True,))

    async def lost(updates: list[bytes], **options: object) -> object:
        answer = await write(updates, timeout=5)
        if next(losses, False):
            raise BfrtUnavailable("the answer was lost")
        return answer

    table._client.write = lost  # type: ignore[method-assign,assignment]
    assert (await table.insert(entry(1))).outcome is Outcome.INSTALLED
    assert served.table == {entry(1).key: entry(1)}


async def test_media_is_declared_once_and_others_left_alone(served: Served, table: RelayTable) -> None:
    theirs = MediaRange(b"\x0a\x00\x00\x09", 1, 2)
    assert served.plane.add_media(theirs) is None
    ours = [MediaRange(b"\x0a\x00\x00\x01", 10_000, 20_000), MediaRange(bytes(15) + b"\x01", 1, 65_535)]
    for _ in range(2):
        assert (await table.declare_media(ours)).outcome is Outcome.INSTALLED
    assert set(served.plane.media()) == {theirs, *ours}
    refused = await table.declare_media([MediaRange(b"\x0a\x00\x00\x01", 5, 4)])
    assert refused.outcome is Outcome.REJECTED and refused.detail
    assert (await table.declare_media([])).ok


def notice(key: FiveTuple, ssrc: int = 0x1234, seq: int = 1) -> LearnNotice:
    """A learn notice of an RTP packet."""
    return LearnNotice(key, 2, 0, seq, ssrc)


async def learned_at(table: RelayTable) -> None:
    """Let packets to the ports of entry() and entry6() be learned from."""
    assert (await table.declare_media([MediaRange(entry(0).key.dst.addr, 10_000, 19_999), MediaRange(entry6(0).key.dst.addr, 2, 2)])).ok


async def test_notices(served: Served, table: RelayTable) -> None:
    await learned_at(table)
    learned: list[LearnNotice] = []
    idle: list[FiveTuple] = []
    table.on_learn = learned.append
    table.on_idle = idle.append
    wanted = [notice(entry(n).key, ssrc=n, seq=n) for n in range(1, 301)] + [notice(entry6(1).key, ssrc=2**32 - 1, seq=65_535)]
    for start in range(0, len(wanted), 100):  # within what one sender may raise at a time
        for each in wanted[start : start + 100]:
            served.notice(each)
        await until(lambda: len(learned) == len(wanted[: start + 100]))
    assert learned == wanted
    await table.insert_many([entry(1, ttl_ms=1_500), replace(entry6(1), ttl_ms=1_500), entry(2, ttl_ms=0)])
    await until(lambda: len(idle) == 2)
    assert set(idle) == {entry(1).key, entry6(1).key}
    active: list[FiveTuple] = []
    table.on_active = active.append
    served.send(entry(1).key)
    await until(lambda: active)
    assert active == [entry(1).key]


async def test_callbacks_that_fail_stop_nothing(served: Served, table: RelayTable, caplog: pytest.LogCaptureFixture) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("a bug of the caller")

    await learned_at(table)
    table.on_learn = failing
    served.notice(notice(entry(1).key))
    await until(lambda: "a bug of the caller" in caplog.text)
    assert (await table.insert(entry(1))).ok


async def test_trace_totals_and_name(served: Served, table: RelayTable) -> None:
    assert table.data_plane in ("softswitch (native XDP on in0)", "softswitch (generic XDP on in0)") and table.lacks == []
    await table.insert(entry(1))
    assert (await table.trace(entry(1).key))["verdict"] == "redirect"
    missed = await table.trace(entry6(1).key)
    assert missed.pop("reason") and missed == {"verdict": "pass", "out_src": "", "out_dst": "", "out_interface": ""}
    totals = await table.totals()
    assert totals["entries"] == 1 and totals["capacity"] == 5_000 and totals["missed_packets"] >= 0


async def test_without_a_data_plane(unused_tcp_port: int) -> None:
    table = RelayTable(f"127.0.0.1:{unused_tcp_port}", client_id=1)
    await table.start()
    assert not table.connected
    assert (await table.insert(entry(1))).outcome is Outcome.UNAVAILABLE
    assert (await table.delete(entry(1).key))[0].outcome is Outcome.UNAVAILABLE
    assert (await table.declare_media([MediaRange(bytes(4), 1, 2)])).outcome is Outcome.UNAVAILABLE
    for question in (table.entries(), table.stats(None), table.trace(entry(1).key), table.totals()):
        with pytest.raises(DataPlaneUnavailable):
            await question
    await until(lambda: "UNAVAILABLE" in table.last_error)
    await table.close()
    await table.close()
    assert (await table.insert(entry(1))).outcome is Outcome.UNAVAILABLE


@pytest.fixture
def unused_tcp_port() -> int:
    return free_port(socket.SOCK_STREAM)


async def test_the_data_plane_may_come_later_and_come_back(served: Served, unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    ups: list[str] = []
    downs: list[str] = []
    table = RelayTable(address, client_id=1)
    table.on_up = lambda: ups.append("up")
    table.on_down = downs.append
    await table.start()
    await until(lambda: "UNAVAILABLE" in table.last_error)
    try:
        async with Forwarder(served.target).serve(address):
            await until(lambda: table.connected)
            assert (await table.insert(entry(1))).ok
        await until(lambda: not table.connected)
        assert len(ups) == len(downs) == 1 and downs[0]
        assert (await table.insert(entry(2))).outcome is Outcome.UNAVAILABLE
        async with Forwarder(served.target).serve(address):
            await until(lambda: table.connected)
            assert set(await table.entries()) == {entry(1).key}
            assert (await table.delete(entry(1).key))[0].outcome is Outcome.REMOVED
        assert len(ups) == 2
    finally:
        await table.close()


class Forgetful(Forwarder):
    """A target that forgets its client while the client's stream goes on. resubscribe: it is subscribed again, and not bound."""

    def __init__(self, target: str, resubscribe: bool) -> None:
        super().__init__(target)
        self.resubscribe = resubscribe
        self.forget, self.forgotten = asyncio.Event(), asyncio.Event()

    async def stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        subscription = await anext(aiter(requests))
        forget, forgotten = self.forget, self.forgotten
        onward = await self._subscribed(subscription, context)
        try:
            await forget.wait()
            onward.cancel()
            self.forget, self.forgotten = asyncio.Event(), asyncio.Event()
            while self.resubscribe:
                try:
                    onward = await self._subscribed(subscription, None)
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)  # the softswitch has not noticed that the first stream has ended
            forgotten.set()
            await asyncio.Event().wait()
        finally:
            onward.cancel()

    async def _subscribed(self, subscription: bytes, context: grpc.aio.ServicerContext | None) -> grpc.aio.StreamStreamCall:
        onward = self.new_stream()
        await onward.write(subscription)
        reply = await onward.read()
        if context is not None:
            await context.write(reply)
        return onward


@pytest.mark.parametrize("resubscribe", [False, True])
async def test_a_session_that_the_server_forgot_is_made_anew(served: Served, resubscribe: bool) -> None:
    way = Forgetful(served.target, resubscribe)
    async with way.serve() as target, connected(target) as table:
        downs: list[str] = []
        table.on_down = downs.append
        forget, forgotten = way.forget, way.forgotten
        forget.set()
        await asyncio.wait_for(forgotten.wait(), 30)

        async def refused() -> bool:  # the softswitch may notice a moment later that the first stream has ended
            return (await table.insert(entry(1))).outcome is Outcome.UNAVAILABLE

        while not await refused():
            await asyncio.sleep(0.01)
        await until(lambda: downs)
        await until(lambda: table.connected)
        assert (await table.insert(entry(2))).ok


async def test_only_one_agent_owns_the_program(served: Served) -> None:
    second = RelayTable(served.target, client_id=2)
    async with connected(served.target):
        await second.start()
        await until(lambda: "another client owns" in second.last_error)
        assert not second.connected
    await until(lambda: second.connected)
    await second.close()


async def test_patient_deletes_wait_for_company_and_urgent_writes_do_not_take_them_along(served: Served, table: RelayTable) -> None:
    entries = [entry(n) for n in range(6)]
    assert all(result.ok for result in await table.insert_many(entries))
    busy(served, entries[0].key)
    before = table.counters.batches
    going = []
    for each in entries:
        going.append(asyncio.ensure_future(table.delete_many([each.key], Haste.PATIENT)))
        await asyncio.sleep(0)
    assert (await table.insert(entry(7))).ok
    assert table.counters.batches == before + 1 and set(entries[n].key for n in range(6)) < set(served.table)
    results = [result for (result,) in await asyncio.gather(*going)]
    assert [result.outcome for result, _ in results] == [Outcome.REMOVED] * 6 and lasting(results[0][1]) == COUNTED
    assert table.counters.batches == before + 2 and set(served.table) == {entry(7).key}


async def test_who_waits_for_a_patient_delete_makes_it_urgent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_table, "_PATIENT", replace(relay_table._PATIENT, company=60.0))
    async with connected(served.target) as table:
        assert (await table.insert(entry(1))).ok
        first = asyncio.ensure_future(table.delete_many([entry(1).key], Haste.PATIENT))
        await asyncio.sleep(0.05)
        assert set(served.table) == {entry(1).key}
        again = replace(entry(1), dst=Endpoint.of("10.7.7.7", 1))
        assert (await asyncio.wait_for(table.insert(again), 5)).ok
        assert (await first)[0][0].outcome is Outcome.REMOVED and served.table == {again.key: again}
        last = asyncio.ensure_future(table.delete_many([again.key], Haste.PATIENT))
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(last, 5))[0][0].outcome is Outcome.UNAVAILABLE, "closing leaves nobody waiting"


async def test_closing_ends_what_is_under_way(served: Served) -> None:
    async with connected(served.target, batch_delay=30.0) as table:
        waiting = [asyncio.ensure_future(table.insert(entry(n))) for n in range(3)]
        await asyncio.sleep(0.05)
    assert {result.outcome for result in await asyncio.gather(*waiting)} == {Outcome.UNAVAILABLE}


class Silent(Forwarder):
    """A target that answers no write."""

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.sleep(3600)
        return b""


async def test_a_batch_under_way_when_the_server_dies(served: Served, unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    async with Forwarder(served.target).serve(address), connected(address):
        pass
    way = Silent(served.target)
    async with way.serve(address):
        table = RelayTable(address, client_id=3)
        await table.start()
        await until(lambda: way.writes)  # the idle attribute, unanswered
        assert not table.connected
    await table.close()


class OtherSchema(Forwarder):
    """The softswitch with other schema documents: as a target looks that has other tables. contexts: what its compiler wrote (context.json)."""

    def __init__(self, target: str, program: bytes, fixed: bytes = b'{"tables": []}', contexts: tuple[bytes, ...] = ()) -> None:
        super().__init__(target)
        self.program, self.fixed, self.contexts = program, fixed, contexts

    async def config(self, name: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        answer = await super().config(name, data, context)
        if name != "GetForwardingPipelineConfig":
            return answer
        reply = pb.GetForwardingPipelineConfigResponse.FromString(answer)
        reply.config[0].bfruntime_info, reply.non_p4_config.bfruntime_info = self.program, self.fixed
        if self.contexts:
            del reply.config[0].profiles[:]
            for number, document in enumerate(self.contexts):
                reply.config[0].profiles.add(profile_name=f"pipe{number}", context=document, binary=b"\0" * 1000)
        return reply.SerializeToString()


def reduced_schema(change: Callable[[dict[str, list[dict[str, object]]]], object]) -> bytes:
    """The softswitch's tables of the program after a change: what another target may hand out."""
    made = copy.deepcopy(document("relay"))
    change(made)
    return json.dumps(made).encode()


async def test_a_target_with_counters_and_one_action(served: Served) -> None:
    """As a switch without the softswitch's tables and with the short action only."""

    def change(document: dict[str, list[dict[str, object]]]) -> None:
        document["tables"] = [t for t in document["tables"] if t["name"] in ("pipe.Ingress.relay", "pipe.Ingress.media")]
        document["tables"][0]["action_specs"] = [a for a in document["tables"][0]["action_specs"] if a["name"] in ("Ingress.relay_to", "NoAction")]  # type: ignore[union-attr,index]
        document["learn_filters"] = document["learn_filters"][:1]

    async with OtherSchema(served.target, reduced_schema(change)).serve() as target, connected(target) as table:
        assert table.data_plane == "BF Runtime target (5-tuples taken as 32-bit and 48-bit hashes)"
        results = await table.insert_many([entry(1), entry(2, src=Endpoint.of("10.0.0.1", 1)), entry(3, dscp=46), entry6(1)])
        assert [result.outcome.name for result in results] == ["INSTALLED", "REJECTED", "REJECTED", "REJECTED"]
        assert "no action that sends" in results[1].detail and "DSCP 46" in results[2].detail and "IPv6" in results[3].detail
        served.send(entry(1).key, *[rtp(size=72)] * 7)
        assert await table.stats(None) == await table.stats([entry(1).key]) == {entry(1).key: StreamStats(7, 700)}
        result, last = await table.delete(entry(1).key)
        assert result.ok and last == StreamStats(7, 700)
        assert await table.totals() == {"entries": 0, "capacity": RELAY.size}
        assert (await table.trace(entry(1).key))["verdict"] == "unknown"
        assert [sentence.partition(":")[0] for sentence in table.lacks] == [
            "no relay table for IPv6", "relay has no action with a source address", "relay has no action that sets DSCP",
            "relay has no action towards the other IP version", "no softswitch.quality for relay", "no softswitch.blocklist", "no softswitch.trace",
        ]
        assert (await table.declare_media([MediaRange(bytes(16), 1, 2)])).outcome is Outcome.REJECTED


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (b'{"tables": []}', "no relay table"),
        (b"{", "schema document 0"),
        (lambda d: d["tables"][0]["key"].pop(), "no 'dst_port'"),
        (lambda d: d["tables"][0]["key"][3]["type"].update(width=32), "not a 5-tuple"),
        (lambda d: d["tables"][0].update(action_specs=[]), "no action says"),
        (lambda d: [a["data"] and a["data"][0].update(name="elsewhere") for a in d["tables"][0]["action_specs"]], "no action says"),
    ],
    ids=["no-tables", "no-json", "no-port", "wide-port", "no-actions", "other-fields"],
)
async def test_a_target_that_cannot_serve_is_refused_with_a_reason(served: Served, program: bytes | Callable[[dict[str, list[dict[str, object]]]], object], reason: str) -> None:
    way = OtherSchema(served.target, program if isinstance(program, bytes) else reduced_schema(program))
    async with way.serve() as target:
        table = RelayTable(target, client_id=4)
        await table.start()
        try:
            await until(lambda: reason in table.last_error)
            assert not table.connected and not way.binds
        finally:
            await table.close()


async def test_another_program(served: Served) -> None:
    table = RelayTable(served.target, client_id=4, program="switch")
    await table.start()
    await until(lambda: "'switch'; it runs relay" in table.last_error)
    await table.close()


async def test_the_table_and_another_client_agree(served: Served, table: RelayTable) -> None:
    """What P4 Studio's client writes beside the agent, the agent reads."""
    raw = served.raw()
    await raw.subscribe()
    await raw.write(insert(7), p4_name="relay")
    assert list(await table.entries()) == list(served.table)
    await table.delete(next(iter(served.table)))
    with pytest.raises(grpc.aio.AioRpcError):
        await raw.write(update(pb.Update.DELETE, 7), p4_name="relay")
