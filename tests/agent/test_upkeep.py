"""Keep-alives, media time-outs, BYE over HEP, and the journal."""

from __future__ import annotations

import asyncio
import json

import pytest

from shunt.dialogs import BYE_GRACE, DialogWatch
from shunt.hep.listener import SipSighting
from shunt.journal import Journal, JournalError, decode_call, encode_call
from shunt.journal.sqlite_store import SqliteStore
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint
from shunt.offload import Offloader
from shunt.calls.book import CallBook
from shunt.calls.plan import Policy
from shunt.upkeep import RAISED_TTL, Upkeep
from tests.agent.parts import Core

NOTIFY = " tcp:127.0.0.1:9999 T1.a"


async def offloaded(core: Core, notify: bool = True) -> None:
    to_callee = await core.say("Uc0,8 c1 10.91.1.2 6000 A;1" + (NOTIFY if notify else ""))
    to_caller = await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    await core.packet("10.91.1.2:6000", int(to_caller.split()[0]), ssrc=1)
    await core.packet("10.91.2.2:7000", int(to_callee.split()[0]), ssrc=2)
    assert len(core.table.held) == 2


def clockwork(core: Core) -> tuple[Upkeep, list[tuple[str, str, str | None]]]:
    sent: list[tuple[str, str, str | None]] = []

    async def notify(socket: str, tag: str, peer: str | None) -> None:
        sent.append((socket, tag, peer))

    return Upkeep(core.pool, core.offloader, notify), sent


async def test_an_offloaded_session_has_its_time_out_raised_and_set_back():
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    await upkeep.tick()
    assert core.relay.seen[-1] == b"Q c1 A;1 B;1 && S ttl=%d" % RAISED_TTL
    asked = len(core.relay.seen)
    await upkeep.tick()
    assert len(core.relay.seen) == asked, "once is enough for a while"
    await core.offloader.suspend(core.book.lines()[0], "re-invite")
    await upkeep.tick()
    assert core.relay.seen[-1] == b"Q c1 A;1 B;1 && S ttl=60"


async def test_many_keep_alives_do_not_come_upon_the_relay_at_once():
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    for n in range(40):
        to_callee = await core.say(f"Uc0,8 c{n} 10.91.1.2 {6000 + 2 * n} A;1")
        to_caller = await core.say(f"Lc0,8 c{n} 10.91.2.2 {7000 + 2 * n} A;1 B;1")
        await core.packet(f"10.91.1.2:{6000 + 2 * n}", int(to_caller.split()[0]), ssrc=1)
        await core.packet(f"10.91.2.2:{7000 + 2 * n}", int(to_callee.split()[0]), ssrc=2)
    assert len(core.table.held) == 80
    asked, under_way, most = set(), 0, 0

    async def slowly(body: bytes) -> bytes:
        nonlocal under_way, most
        asked.add(body.split()[1])
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        return b"0"

    core.pool.relays[0].request = slowly
    await upkeep.tick()
    assert len(asked) == 40 and most <= 4, most


@pytest.mark.parametrize(("method", "command"), [
    ("ttl-modifier", b"Lc0,8 c1 - 0 A;1 B;1 && T%d" % RAISED_TTL), ("lookup", b"Lc0,8 c1 - 0 A;1 B;1"),
])
async def test_older_relays_are_kept_alive_by_a_lookup_without_an_address(method, command):
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    core.pool.relays[0].keepalive = method
    await offloaded(core)
    await upkeep.tick()
    assert core.relay.seen[-1] == command
    assert not any(seen.startswith(b"U") for seen in core.relay.seen[-1:])


async def test_a_silent_call_is_timed_out_by_the_agent_and_the_sip_server_is_told():
    core = Core()
    upkeep, sent = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    for stat in core.table.counts.values():
        stat.packets, stat.idle_ms = 10, 59_000
    for key in core.table.held:
        core.table.on_idle(key)
    core.now += 61
    core.offloader.book.lines()[0].relay_packets = 3
    await upkeep.tick()
    assert sent == [], "a packet 59 s ago is not a time-out of 60 s"
    for stat in core.table.counts.values():
        stat.idle_ms = 61_000
    core.now += 10
    await upkeep.tick()
    assert sent == [("tcp:127.0.0.1:9999", "T1.a", "127.0.0.1")]
    assert core.table.held == {} and core.relay.sessions == {}
    assert core.stream()["reason"] == "media-timeout"


async def test_calls_that_a_dead_relay_forgot_go_on_until_they_are_silent():
    """The relay died, then the agent: what the next agent finds in the data plane is live, and is not cut."""
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    await core.call("c2", "10.91.1.3 6000", "10.91.2.3 7000")
    core.relay.sessions.clear()
    await upkeep.verify(core.book.lines())
    assert core.stream("c2")["reason"] == "relay-timeout", "nothing carries that one's media any more"
    for stat, idle in zip(core.table.counts.values(), (500, 40_000)):
        stat.packets, stat.idle_ms = 10, idle
    core.now += 10
    await upkeep.tick()
    assert len(core.table.held) == 2
    for stat in core.table.counts.values():
        stat.idle_ms = 31_000
    core.now += 10
    await upkeep.tick()
    assert core.table.held == {} and core.stream()["reason"] == "relay-timeout"


async def test_a_call_that_was_ended_while_no_agent_was_there_goes_soon_after_its_media():
    """The relay remembers an older call, so it has not died: the other one was ended by a delete that no agent saw."""
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    await core.call("older", "10.91.1.3 6000", "10.91.2.3 7000")
    core.now += 5
    await offloaded(core)
    for key in [key for key in core.relay.sessions if key[0] == "c1"]:
        del core.relay.sessions[key]
    for stat in core.table.counts.values():
        stat.idle_ms = 300
    await upkeep.verify(core.book.lines())
    await upkeep.tick()
    assert len(core.table.held) == 2
    for stat in core.table.counts.values():
        stat.idle_ms = 1200
    core.now += 1
    await upkeep.tick()
    assert core.table.held == {} and core.stream()["reason"] == "relay-timeout" and core.book.call("older").lines[0].released is None


async def test_one_live_direction_keeps_a_call():
    core = Core()
    upkeep, sent = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    for stat, idle in zip(core.table.counts.values(), (500, 500_000)):
        stat.packets, stat.idle_ms = 10, idle
    for key in core.table.held:
        core.table.on_idle(key)
    core.now += 400
    await upkeep.tick()
    assert sent == [] and len(core.table.held) == 2


async def test_live_calls_are_not_read_for_the_time_out():
    core = Core()
    upkeep, sent = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    read: list[object] = []
    original = core.table.stats

    async def counted(keys):
        read.append(keys)
        return await original(keys)

    core.table.stats = counted
    core.now += 1000
    await upkeep.tick()
    assert read == [] and sent == [] and len(core.table.held) == 2


async def test_a_data_plane_without_idle_times_is_believed_by_its_notice():
    core = Core()
    upkeep, sent = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    core.offloader.book.lines()[0].relay_packets = 3
    for key, stat in core.table.counts.items():
        stat.idle_ms = None
        core.table.on_idle(key)
    core.now += 20
    await upkeep.tick()
    assert sent == []
    core.now += 50
    await upkeep.tick()
    assert len(sent) == 1


async def test_a_re_offer_without_notify_arguments_cancels_the_notification():
    core = Core()
    await offloaded(core)
    assert core.book.lines()[0].notify_tag == "T1.a"
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1 B;1")
    assert core.book.lines()[0].notify_tag is None


def message(method: str | None, from_tag: str, to_tag: str | None, *, status: int | None = None, source: str = "10.91.1.2:5060") -> SipSighting:
    return SipSighting(method, status, "c1", from_tag, to_tag, "INVITE" if status else method or "", Endpoint.parse(source), Endpoint.parse("10.91.1.1:5060"), ())


@pytest.mark.parametrize("seen", [message("BYE", "A", "B"), message("BYE", "B", "A"), message("CANCEL", "A", None)])
async def test_a_bye_takes_the_entries_out_without_waiting_for_the_delete(seen):
    core = Core()
    await offloaded(core)
    DialogWatch(core.offloader).on_sighting(seen)
    await core.settle()
    assert core.table.held == {} and core.stream()["reason"] == "bye-seen"


async def test_a_cancel_of_a_losing_branch_does_not_touch_the_answered_call():
    core = Core()
    await offloaded(core)
    watch = DialogWatch(core.offloader)
    watch.on_sighting(message(None, "A", "B", status=200, source="10.91.2.2:5060"))
    watch.on_sighting(message("CANCEL", "A", None))
    await core.settle()
    assert len(core.table.held) == 2 and core.stream()["reason"] == "offloaded"


async def test_an_answer_after_a_cancelled_branch_brings_the_call_back():
    core = Core()
    await offloaded(core)
    DialogWatch(core.offloader).on_sighting(message("CANCEL", "A", None))
    await core.settle()
    assert core.table.held == {}
    await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 C;1")
    assert len(core.table.held) == 2


async def test_a_bye_of_another_fork_changes_nothing():
    core = Core()
    await offloaded(core)
    DialogWatch(core.offloader).on_sighting(message("BYE", "A", "C"))
    await core.settle()
    assert len(core.table.held) == 2


async def test_a_refused_bye_is_forgotten_after_a_while():
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    keys = list(core.table.held)
    DialogWatch(core.offloader).on_sighting(message("BYE", "A", "B"))
    await core.settle()
    core.now += 1
    for ssrc, key in enumerate(keys, 1):
        await core.packet(str(key.src), key.dst.port, ssrc=ssrc, seq=2)
    assert core.table.held == {}
    core.now += BYE_GRACE
    await upkeep.tick()
    await core.settle()
    assert len(core.table.held) == 2


async def test_a_call_that_is_silent_after_its_bye_has_no_entries_and_times_out_from_there():
    """Nobody was given the delete: the SIP server had just found the agent dead, and has no other relay."""
    core = Core()
    upkeep, sent = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    await upkeep.tick()
    core.now += 100
    DialogWatch(core.offloader).on_sighting(message("BYE", "A", "B"))
    await core.settle()
    core.now += BYE_GRACE + 1
    await upkeep.tick()
    await core.settle()
    assert core.table.held == {} and sent == []
    core.now += 1
    await upkeep.tick()
    assert b"Q c1 A;1 B;1 && S ttl=60" in core.relay.seen, "the relay times it out as any other"
    core.relay.sessions.clear()
    core.now += 60
    await upkeep.tick()
    assert core.stream()["reason"] == "relay-timeout"


async def test_a_call_whose_delete_went_to_the_relay_itself_is_over_after_its_bye():
    """The SIP server thought the agent dead and asked its backup, the relay."""
    core = Core()
    upkeep, _ = clockwork(core)
    await core.pool.relays[0].poll()
    await offloaded(core)
    DialogWatch(core.offloader).on_sighting(message("BYE", "A", "B"))
    core.relay.sessions.clear()
    await core.settle()
    core.now += BYE_GRACE + 1
    await upkeep.tick()
    await core.settle()
    assert core.table.held == {} and core.stream()["reason"] == "released"


async def test_the_address_of_sip_messages_vouches_for_media():
    core = Core()
    watch = DialogWatch(core.offloader)
    watch.on_sighting(message("INVITE", "A", None, source="10.91.3.2:40000"))
    pl, pu = await core.call(caller="192.168.50.2 6000")
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    await core.packet("10.91.3.2:41234", pl, ssrc=1)
    assert len(core.table.held) == 2


async def journal_in(folder):
    journal = Journal(SqliteStore(str(folder / "journal.sqlite")))
    await journal.open()
    return journal


async def test_a_restarted_agent_knows_its_calls(tmp_path):
    core = Core()
    await offloaded(core)
    first = await journal_in(tmp_path)
    first.call_changed(core.book.calls()[0])
    await first.flush()
    await first.close()
    second = await journal_in(tmp_path)
    calls, _ = await second.load(LatchPolicy(), lambda: 5.0)
    await second.close()
    book = CallBook(LatchPolicy())
    offloader = Offloader(book, core.table, Policy(), clock=lambda: 5.0)
    for call in calls:
        book.restore(call)
        offloader.restore(call)
    core.table.log.clear()
    await offloader.reconcile()
    assert core.table.log == [], "everything was there already: nothing is written, nothing is cut"
    assert set(offloader.entries) == set(core.table.held) and offloader.orphans == {}
    await offloader.release(book.lines(), "released")
    assert core.table.held == {}


async def test_a_released_call_leaves_the_journal(tmp_path):
    core = Core()
    await offloaded(core)
    journal = await journal_in(tmp_path)
    call = core.book.calls()[0]
    journal.call_changed(call)
    await journal.flush()
    await core.say("D c1 A B")
    journal.call_changed(call)
    await journal.flush()
    assert await journal.load(LatchPolicy(), lambda: 0.0) == ([], {})
    await journal.close()


async def test_a_call_survives_json():
    core = Core()
    await offloaded(core)
    call = core.book.calls()[0]
    again = decode_call(json.loads(encode_call(call)), LatchPolicy(), 1000.0)
    assert encode_call(again) == encode_call(call)


async def test_a_file_that_is_no_journal_is_refused_by_name(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match="journal.sqlite"):
        await journal_in(tmp_path)
