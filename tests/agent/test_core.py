"""The agent's core: signalling and packets in, relay entries out."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from shunt.calls.model import Side
from shunt.control import proxy
from shunt.events.bus import LEARN, STATE, Event
from shunt.leisure import MOST_S
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange, Outcome, RelayEntry, Result
from tests.agent.parts import RELAY_IP, Core


async def both_speak(core: Core, pl: int, pu: int) -> None:
    await core.packet("10.91.1.2:6000", pl, ssrc=1)
    await core.packet("10.91.2.2:7000", pu, ssrc=2)


async def test_entries_are_the_four_of_the_design():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    await core.packet("10.91.1.2:6001", pl + 1)
    await core.packet("10.91.2.2:7001", pu + 1)
    assert core.rewrites() == {
        f"10.91.1.2:6000 > {RELAY_IP}:{pl}": f"{RELAY_IP}:{pu} > 10.91.2.2:7000",
        f"10.91.2.2:7000 > {RELAY_IP}:{pu}": f"{RELAY_IP}:{pl} > 10.91.1.2:6000",
        f"10.91.1.2:6001 > {RELAY_IP}:{pl + 1}": f"{RELAY_IP}:{pu + 1} > 10.91.2.2:7001",
        f"10.91.2.2:7001 > {RELAY_IP}:{pu + 1}": f"{RELAY_IP}:{pl + 1} > 10.91.1.2:6001",
    }


async def test_commands_that_are_not_understood_are_logged_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each is passed on; a SIP server that sends thousands writes one line every half minute, with their number."""
    core = Core()

    async def relay(*_: object) -> bytes:
        return b"E1\n"

    monkeypatch.setattr(core.proxy, "_pass", relay)
    with caplog.at_level(logging.INFO, logger=proxy.log.name):
        for _ in range(1000):
            assert await core.say("U") == b"E1\n"
        monkeypatch.setattr(proxy, "_NOT_UNDERSTOOD_S", 0.0)
        await core.say("U")
    lines = [message for message in caplog.messages if "not understood" in message]
    assert len(lines) == 2 and "(1 such" in lines[0] and "(1000 such" in lines[1]


async def test_nothing_is_installed_before_both_parties_were_heard():
    core = Core()
    pl, _ = await core.call()
    await core.packet("10.91.1.2:6000", pl)
    assert core.table.held == {}
    assert core.stream()["reason"] == "waiting-for-other-party"
    assert core.stream(direction="callee->caller")["reason"] == "waiting-for-media"


async def test_packets_noticed_together_are_acted_upon_once():
    """Of both parties' first packets the second says what to do: the first is no reason to say that the other party is waited for."""
    core = Core()
    pl, pu = await core.call()
    told: list[Event] = []
    core.offloader.events.subscribe(told.append)
    await core.packet("10.91.1.2:6000", pl, wait=False)
    await core.packet("10.91.2.2:7000", pu, wait=False)
    await core.settle()
    states = [(event.party, event.what, event.facts["reason"]) for event in told if event.kind == STATE and event.component == "rtp"]
    assert sorted(states) == [("callee", "offloaded", "offloaded"), ("caller", "offloaded", "offloaded")]
    assert [event.what for event in told if event.kind == LEARN] == ["accepted", "accepted"] and len(core.table.held) == 2


async def test_what_was_noticed_before_signalling_took_the_line_back_does_not_put_it_in():
    core = Core()
    pl, pu = await core.call()
    await core.packet("10.91.1.2:6000", pl, wait=False)
    await core.packet("10.91.2.2:7000", pu, wait=False)
    line = core.book.call("c1").lines[0]
    await core.offloader.suspend(line, "re-invite")
    await core.settle()
    assert core.table.log == [] and core.stream()["reason"] == "re-invite"
    core.offloader.resume(line)
    await core.settle()
    assert core.stream()["state"] == "offloaded" and len(core.table.held) == 2


async def test_what_signalling_says_while_an_old_entry_goes_decides_about_the_new_one():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    line = core.book.call("c1").lines[0]
    old = set(core.table.held)
    line.legs[Side.CALLER].rtp.take(Endpoint.parse("10.91.1.9:6000"), 1, 2)
    core.table.log.clear()
    core.table.delay = 0.02
    core.offloader.sync_soon(line)
    await asyncio.sleep(0.01)
    assert set(core.table.held) == old, "the delete is under way"
    core.book.release(line, "released")
    await core.settle()
    assert [what for what, _ in core.table.log] == ["delete", "delete"] and core.table.held == {}


async def test_one_way_media_goes_to_the_signalled_address_after_the_grace_time():
    core = Core(one_way_after=0.05)
    pl, pu = await core.call()
    await core.packet("10.91.1.2:6000", pl)
    core.now += 0.1
    await asyncio.sleep(0.1)
    await core.settle()
    assert core.rewrites() == {f"10.91.1.2:6000 > {RELAY_IP}:{pl}": f"{RELAY_IP}:{pu} > 10.91.2.2:7000"}
    assert core.stream()["reason"] == "one-way"


async def test_the_learned_nat_address_is_the_destination_not_the_signalled_one():
    core = Core()
    pl, pu = await core.call(caller="10.91.3.2 6000")
    await core.packet("10.91.3.2:41234", pl, ssrc=1)
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    assert core.rewrites()[f"10.91.2.2:7000 > {RELAY_IP}:{pu}"] == f"{RELAY_IP}:{pl} > 10.91.3.2:41234"


async def test_an_unvouched_source_needs_a_run_of_packets_over_the_guard_time():
    core = Core()
    pl, pu = await core.call(caller="192.168.50.2 6000")
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(5):
        assert core.table.held == {}
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        assert core.stream()["reason"] == ("verifying-source" if n < 4 else "offloaded")
        core.now += 0.021
    assert len(core.table.held) == 2


async def test_two_persistent_sources_leave_the_stream_on_the_relay():
    core = Core()
    pl, pu = await core.call(caller="192.168.50.2 6000")
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(10):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        await core.packet("10.91.9.9:5555", pl, ssrc=7, seq=n)
        core.now += 0.02
    assert core.table.held == {}
    assert core.stream()["reason"] == "contested"


async def test_a_sprayer_neither_latches_nor_disturbs():
    core = Core()
    ports = [await core.call(f"c{n}", caller="192.168.50.2 6000") for n in range(6)]
    for seq in range(20):
        for pl, pu in ports:
            await core.packet("10.66.6.6:9999", pl, ssrc=9, seq=seq)
            await core.packet("10.66.6.6:9999", pu, ssrc=9, seq=seq)
        core.now += 0.02
    assert core.table.held == {}
    pl, pu = ports[5]
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(6):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        await core.packet("10.66.6.6:9999", pl, ssrc=9, seq=20 + n)
        core.now += 0.03
    assert f"10.91.3.2:41234 > {RELAY_IP}:{pl}" in core.rewrites()
    assert not any("10.66.6.6" in key + value for key, value in core.rewrites().items())


async def test_entries_are_out_before_the_relay_hears_of_a_port_change_and_the_old_source_is_quarantined():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    held_when_relay_heard: list[int] = []
    core.relay.at_command = lambda command: held_when_relay_heard.append(len(core.table.held))
    await core.say("Uc0,8 c1 10.91.1.2 6100 A;1 B;1")
    assert held_when_relay_heard == [0]
    await core.packet("10.91.1.2:6000", pl, ssrc=1, seq=50)
    assert core.table.held == {}, "a late packet from the old port must not latch"
    await core.packet("10.91.1.2:6100", pl, ssrc=1, seq=51)
    assert core.rewrites()[f"10.91.1.2:6100 > {RELAY_IP}:{pl}"] == f"{RELAY_IP}:{pu} > 10.91.2.2:7000"
    assert core.rewrites()[f"10.91.2.2:7000 > {RELAY_IP}:{pu}"] == f"{RELAY_IP}:{pl} > 10.91.1.2:6100"


async def test_a_repeated_answer_changes_nothing():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    before = list(core.table.log)
    await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    assert core.table.log == before and len(core.table.held) == 2


async def test_what_an_answer_left_to_be_done_comes_before_the_calls_next_command():
    core = Core()
    await core.call()
    (line,) = core.book.lines()
    seen: list[str | None] = []
    ask = core.relay.forward

    async def slowly(body: bytes, peer_ip: str | None) -> bytes | None:
        await asyncio.sleep(4 * MOST_S)
        seen.append(line.suspended)
        return await ask(body, peer_ip)

    core.offloader.leisure.begin()  # another call's command is being answered all the time
    await core.proxy.handle(b"Lc0,8 c1 10.91.2.2 7000 A;1 B;1", b"1_2_3", "127.0.0.1")
    core.pool.relays[0].forward = slowly
    await core.proxy.handle(b"Uc0,8 c1 10.91.1.3 6000 A;1 B;1", b"1_2_3", "127.0.0.1")
    assert seen == ["re-invite"], "an answer before the offer must not end what the offer has begun"


async def test_re_invite_by_the_callee_keeps_the_legs_apart():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    assert await core.say("Uc0,8 c1 10.91.2.2 7200 B;1 A;1") == b"%d %s" % (pl, RELAY_IP.encode())
    assert await core.say("Lc0,8 c1 10.91.1.2 6000 B;1 A;1") == b"%d %s" % (pu, RELAY_IP.encode())
    await core.packet("10.91.2.2:7200", pu, ssrc=2)
    assert core.rewrites() == {
        f"10.91.1.2:6000 > {RELAY_IP}:{pl}": f"{RELAY_IP}:{pu} > 10.91.2.2:7200",
        f"10.91.2.2:7200 > {RELAY_IP}:{pu}": f"{RELAY_IP}:{pl} > 10.91.1.2:6000",
    }


async def test_hold_with_the_null_address_takes_both_directions_out_and_unhold_brings_them_back():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    await core.say("Uc0,8 c1 0.0.0.0 6000 A;1 B;1")
    assert core.table.held == {}
    assert core.stream(direction="callee->caller")["reason"] == "on-hold"
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1 B;1")
    core.now += 4
    await core.packet("10.91.1.2:6000", pl, ssrc=1)
    assert len(core.table.held) == 2


async def test_resize_stays_on_the_relay_with_its_reason():
    core = Core()
    pu = int((await core.say("UZ20c0 c1 10.91.1.2 6000 A;1")).split()[0])
    pl = int((await core.say("LZ20c0 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    await both_speak(core, pl, pu)
    assert core.table.held == {} and core.stream()["reason"] == "resize"


@pytest.mark.parametrize(("command", "reason"), [("R c1 A;1 B;1", "recording"), ("P c1 prompt 0 A;1 B;1", "playback"), ("C c1 udp:10.0.0.1:9 A;1 B;1", "copy")])
async def test_what_only_the_relay_can_do_brings_the_stream_back_to_it(command, reason):
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    held: list[int] = []
    core.relay.at_command = lambda c: held.append(len(core.table.held))
    await core.say(command)
    assert held == [0] and core.stream()["reason"] == reason


async def test_delete_takes_everything_out_whatever_the_tags_order():
    for tags in ("A B", "B A", "A"):
        core = Core()
        pl, pu = await core.call()
        await both_speak(core, pl, pu)
        assert await core.say(f"D c1 {tags}") == b"0"
        assert core.table.held == {} and core.book.calls() == []
        assert core.stream()["state"] == "released"
        assert await core.say(f"D c1 {tags}") == b"E50"


async def test_a_delete_that_races_an_install_leaves_nothing():
    core = Core()
    pl, pu = await core.call()
    core.table.delay = 0.02
    await core.packet("10.91.1.2:6000", pl, ssrc=1, wait=False)
    await core.packet("10.91.2.2:7000", pu, ssrc=2, wait=False)
    await asyncio.sleep(0.005)
    await core.say("D c1 A B")
    assert core.table.held == {} and core.offloader.entries == {}


async def test_a_delete_is_answered_at_once_and_the_calls_next_command_waits_for_its_entries():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    changed: list[str | None] = []
    core.offloader.line_changed = lambda line: changed.append(line.released)
    core.table.delay = 0.3
    assert await core.proxy.handle(b"D c1 A B", b"1", "127.0.0.1") == b"0"
    assert len(core.table.held) == 2 and changed == [], "the journal has the call until its entries are out"
    held_when_relay_heard: list[int] = []
    core.relay.at_command = lambda command: held_when_relay_heard.append(len(core.table.held))
    await core.proxy.handle(b"Uc0,8 c1 10.91.1.2 6000 A;1", b"2", "127.0.0.1")
    assert held_when_relay_heard == [0] and "released" in changed
    await core.proxy.handle(b"D c1 A B", b"3", "127.0.0.1")
    assert changed[-1] == "released", "without entries the journal has heard of it before the answer"
    await core.settle()


async def test_query_counts_what_the_data_plane_carried():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    core.table.counts[FiveTuple(Endpoint.parse("10.91.1.2:6000"), Endpoint.of(RELAY_IP, pl))].packets = 100
    core.table.counts[FiveTuple(Endpoint.parse("10.91.2.2:7000"), Endpoint.of(RELAY_IP, pu))].packets = 30
    assert await core.say("Q c1 A;1 B;1") == b"60 101 32 133 0"
    assert await core.say("Q c1 B;1 A;1") == b"60 31 102 133 0"


async def test_a_full_table_leaves_the_stream_on_the_relay_and_says_so():
    core = Core()
    pl, pu = await core.call()
    core.table.fail = Outcome.TABLE_FULL
    await both_speak(core, pl, pu)
    assert core.stream()["reason"] == "table-full" and core.offloader.entries == {}


async def test_what_fails_for_one_stream_of_a_line_is_no_others_fault():
    core = Core()
    pl, pu = await core.call()
    full = FiveTuple(Endpoint.parse("10.91.1.2:6000"), Endpoint.of(RELAY_IP, pl))
    core.table.fails[full] = Outcome.TABLE_FULL
    await both_speak(core, pl, pu)
    assert core.stream()["reason"] == "table-full" and core.stream(direction="callee->caller")["state"] == "offloaded"
    (other,) = core.offloader.entries
    assert other != full and set(core.table.held) == {other}
    core.table.fails = {}
    core.now += 60.0
    await core.offloader.reconcile()
    await core.settle()
    assert core.stream()["state"] == "offloaded" and set(core.offloader.entries) == set(core.table.held) == {full, other}
    core.table.fails[full] = Outcome.UNAVAILABLE
    await core.say("D c1 A B")
    assert set(core.table.held) == core.offloader._doomed == {full} and core.offloader.entries == {}
    core.table.fails = {}
    await core.offloader.reconcile()
    assert core.table.held == {}


async def test_an_unanswered_delete_is_done_when_the_data_plane_is_back():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    core.table.fail = Outcome.UNAVAILABLE
    await core.say("D c1 A B")
    assert len(core.table.held) == 2
    core.table.fail = None
    await core.offloader.reconcile()
    assert core.table.held == {}


def leave_unanswered(core: Core, monkeypatch: pytest.MonkeyPatch):
    """Have inserts get in, but their answers not; returns the usual insert."""
    insert = core.table.insert

    async def unanswered(entry: RelayEntry) -> Result:
        await insert(entry)
        return Result(Outcome.UNAVAILABLE, "closed")

    monkeypatch.setattr(core.table, "insert", unanswered)
    return insert


async def test_an_unanswered_insert_that_had_got_in_stays_in(monkeypatch: pytest.MonkeyPatch):
    """The data plane carries the stream: taken out and put in again, it would lose what its relay does not hear meanwhile."""
    core = Core()
    pl, pu = await core.call()
    insert = leave_unanswered(core, monkeypatch)
    await both_speak(core, pl, pu)
    assert len(core.table.held) == 2 and core.offloader.entries == {} and core.stream()["reason"] == "data-plane-unavailable"
    monkeypatch.setattr(core.table, "insert", insert)
    core.table.log.clear()
    await core.offloader.reconcile()
    await core.settle()
    assert core.stream()["state"] == "offloaded" and len(core.offloader.entries) == 2
    assert [what for what, _ in core.table.log if what == "delete"] == []


async def test_an_unanswered_insert_that_is_not_wanted_any_more_goes(monkeypatch: pytest.MonkeyPatch):
    core = Core()
    pl, pu = await core.call()
    insert = leave_unanswered(core, monkeypatch)
    await both_speak(core, pl, pu)
    old = set(core.table.held)
    await core.say("Uc0,8 c1 10.91.1.3 6000 A;1 B;1")
    monkeypatch.setattr(core.table, "insert", insert)
    await core.offloader.reconcile()
    await core.settle()
    assert len(old) == 2 and not {key for key in old if key.src.ip == "10.91.1.2"} & set(core.table.held)


async def test_an_entry_that_was_being_deleted_when_the_table_was_read_is_not_taken_up_again(monkeypatch: pytest.MonkeyPatch):
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    old = set(core.table.held)
    core.table.fail = Outcome.UNAVAILABLE
    await core.say("Uc0,8 c1 10.91.1.2 6100 A;1 B;1")
    core.table.fail, core.table.delay = None, 0.02
    taken_up: list[FiveTuple] = []
    monkeypatch.setattr(core.offloader, "_adopt", lambda key, entry, now: taken_up.append(key) or True)

    async def slow() -> dict[FiveTuple, RelayEntry]:
        read = dict(core.table.held)
        await sweeping
        return read

    monkeypatch.setattr(core.table, "entries", slow)
    sweeping = asyncio.create_task(core.offloader.sweep_doomed())
    await asyncio.sleep(0)
    assert old & set(core.table.held), "the deletes are on their way"
    await core.offloader.reconcile()
    assert not old & set(core.table.held) and taken_up == []


async def test_an_entry_that_was_being_written_when_the_table_was_read_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    core = Core()
    pl, pu = await core.call()
    core.table.delay = 0.02
    await core.packet("10.91.1.2:6000", pl, ssrc=1, wait=False)
    await core.packet("10.91.2.2:7000", pu, ssrc=2, wait=False)
    await asyncio.sleep(0.01)
    assert not core.table.held, "the inserts are on their way"

    async def slow() -> dict[FiveTuple, RelayEntry]:
        read = dict(core.table.held)
        while len(core.offloader.entries) < 2:
            await asyncio.sleep(0)
        return read

    monkeypatch.setattr(core.table, "entries", slow)
    forgotten: list[FiveTuple] = []
    monkeypatch.setattr(core.offloader, "_give_up", lambda key, stream, may_be_in: forgotten.append(key))
    await core.offloader.reconcile()
    await core.settle()
    assert forgotten == [] and core.table.log == [("insert", key) for key in core.table.held] and len(core.table.held) == 2


async def test_reconcile_puts_back_what_the_data_plane_lost_and_cuts_nothing_live():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    lost, kept = list(core.table.held)
    del core.table.held[lost]
    core.table.log.clear()
    await core.offloader.reconcile()
    assert core.table.log == [("insert", lost)]
    assert set(core.table.held) == {lost, kept}


async def test_reconcile_rewrites_what_is_wrong_and_says_what_cannot_be_put_back():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    first, second = list(core.table.held)
    right = core.table.held[first]
    core.table.held[first] = replace(right, dst=Endpoint.parse("10.9.9.9:9"))
    core.table.log.clear()
    await core.offloader.reconcile()
    assert core.table.held[first] == right and ("delete", first) not in core.table.log
    # A data plane that came back empty, and smaller.
    core.table.held.clear()
    core.table.fail = Outcome.TABLE_FULL
    await core.offloader.reconcile()
    assert core.offloader.entries == {} and core.stream()["reason"] == "table-full"
    core.table.fail = None
    await core.offloader.reconcile()
    assert set(core.table.held) == {first, second} and core.stream()["state"] == "offloaded"


async def test_a_call_that_ends_while_its_entries_are_written_again_leaves_nothing():
    core = Core()
    pl, pu = await core.call()
    await both_speak(core, pl, pu)
    core.table.held.clear()
    core.table.delay = 0.05
    reconciling = asyncio.create_task(core.offloader.reconcile())
    await asyncio.sleep(0.02)
    assert (await core.say("D c1 A B")) == b"0"
    await reconciling
    await core.settle()
    assert core.table.held == {} and core.offloader.entries == {}


async def test_the_very_source_that_signalling_names_goes_before_another_of_its_address():
    """Packets of an older call of the same phone, to a port that a relay has given out again, do not keep the party from its stream."""
    core = Core()
    pl, pu = await core.call(caller="10.91.1.2 6000", callee="10.91.2.2 7000")
    await core.packet("10.91.1.2:5000", pl, ssrc=0x99, seq=900)
    await core.packet("10.91.2.2:7000", pu)
    assert FiveTuple(Endpoint.parse("10.91.1.2:5000"), Endpoint.of(RELAY_IP, pl)) in core.table.held
    await core.packet("10.91.1.2:6000", pl, ssrc=0x11, seq=1)
    await core.settle()
    sources = {key.src for key in core.table.held if key.dst == Endpoint.of(RELAY_IP, pl)}
    assert sources == {Endpoint.parse("10.91.1.2:6000")}
    await core.packet("10.91.1.2:5000", pl, ssrc=0x99, seq=950)
    await core.settle()
    assert {key.src for key in core.table.held if key.dst == Endpoint.of(RELAY_IP, pl)} == sources, "and not back while it sends"


async def test_nat_rebinding_is_followed_only_when_the_old_source_is_silent():
    core = Core()
    pl, pu = await core.call(caller="192.168.50.2 6000")
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(6):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        core.now += 0.03
    old = FiveTuple(Endpoint.parse("10.91.3.2:41234"), Endpoint.of(RELAY_IP, pl))
    assert old in core.table.held
    core.table.counts[old].idle_ms = 10
    await core.packet("10.91.3.2:50000", pl, ssrc=1, seq=7)
    assert old in core.table.held, "the old source still sends: this is an injection, not a rebinding"
    core.table.counts[old].idle_ms = 1500
    await core.packet("10.91.3.2:50000", pl, ssrc=1, seq=8)
    assert old not in core.table.held
    assert core.rewrites()[f"10.91.2.2:7000 > {RELAY_IP}:{pu}"] == f"{RELAY_IP}:{pl} > 10.91.3.2:50000"


async def test_a_switch_that_tells_no_idle_times_says_when_a_source_is_silent():
    """Idle and active notices alone decide whether a source may have moved, and whether a stream counts as idle."""
    core = Core()
    pl, pu = await core.call(caller="192.168.50.2 6000")
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(6):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        core.now += 0.03
    old = FiveTuple(Endpoint.parse("10.91.3.2:41234"), Endpoint.of(RELAY_IP, pl))
    core.table.counts[old].idle_ms = None
    core.table.on_idle(old)
    assert core.offloader.entries[old].idle_since is not None
    core.table.on_active(old)
    assert core.offloader.entries[old].idle_since is None
    await core.packet("10.91.3.2:50000", pl, ssrc=1, seq=7)
    assert old in core.table.held, "the old source sends again"
    core.table.on_idle(old)
    await core.packet("10.91.3.2:50000", pl, ssrc=1, seq=8)
    assert old not in core.table.held


async def test_unknown_commands_and_garbage_reach_the_relay_as_they_came():
    core = Core()
    for body in ("Z whatever 1 2 3", "V", "VF 20050322", "G nsess_created"):
        await core.say(body)
        assert core.relay.seen[-1] == body.encode()


async def test_a_silent_relay_is_a_silent_agent():
    core = Core()
    core.relay.silent = True
    assert await core.say("Uc0 c1 10.91.1.2 6000 A;1") is None
    assert core.book.calls() == []


async def test_late_offer_names_the_offerer_first():
    core = Core()
    pu = int((await core.say("Uc0 c1 10.91.2.2 7000 UAS;1 UAC;1")).split()[0])
    pl = int((await core.say("Lc0 c1 10.91.1.2 6000 UAS;1 UAC;1")).split()[0])
    await core.packet("10.91.2.2:7000", pl, ssrc=2)
    await core.packet("10.91.1.2:6000", pu, ssrc=1)
    assert core.rewrites() == {
        f"10.91.2.2:7000 > {RELAY_IP}:{pl}": f"{RELAY_IP}:{pu} > 10.91.1.2:6000",
        f"10.91.1.2:6000 > {RELAY_IP}:{pu}": f"{RELAY_IP}:{pl} > 10.91.2.2:7000",
    }


async def test_several_media_are_separate_lines_and_one_delete_ends_all():
    core = Core()
    ports = {}
    for media, offset in ((1, 0), (2, 2)):
        ports[media] = int((await core.say(f"Uc0 c1 10.91.1.2 {6000 + offset} A;{media}")).split()[0])
    for media, offset in ((1, 0), (2, 2)):
        pl = int((await core.say(f"Lc0 c1 10.91.2.2 {7000 + offset} A;{media} B;{media}")).split()[0])
        await core.packet(f"10.91.1.2:{6000 + offset}", pl, ssrc=media)
        await core.packet(f"10.91.2.2:{7000 + offset}", ports[media], ssrc=10 + media)
    assert len(core.table.held) == 4
    await core.say("D c1 A B")
    assert core.table.held == {}


async def test_bridged_legs_are_asymmetric_as_in_rtpproxy_unless_the_relay_learns_there():
    for symmetric, expected in (((), True), (("r1",), False)):
        core = Core()
        core.book._symmetric_relays = frozenset(symmetric)
        await core.say("UIEc0 c1 10.91.1.2 6000 A;1")
        await core.say("LEIc0 c1 10.91.2.2 7000 A;1 B;1")
        assert [leg.asymmetric for leg in core.book.lines()[0].legs.values()] == [expected, expected]


async def test_an_asymmetric_leg_takes_any_port_of_its_address_and_is_sent_to_the_signalled_one():
    core = Core()
    pu = int((await core.say("UAc0 c1 10.91.1.2 6000 A;1")).split()[0])
    pl = int((await core.say("LAc0 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    await core.packet("10.91.2.2:7000", pu, ssrc=2)
    for n in range(10):
        await core.packet("10.91.3.3:6000", pl, ssrc=1, seq=n)
        core.now += 0.03
    assert core.table.held == {}, "another address is never learned there"
    await core.packet("10.91.1.2:6111", pl, ssrc=1)
    assert core.rewrites() == {
        f"10.91.1.2:6111 > {RELAY_IP}:{pl}": f"{RELAY_IP}:{pu} > 10.91.2.2:7000",
        f"10.91.2.2:7000 > {RELAY_IP}:{pu}": f"{RELAY_IP}:{pl} > 10.91.1.2:6000",
    }


async def test_ports_that_no_relay_is_said_to_have_are_given_as_the_reason():
    core = Core(media=(MediaRange(Endpoint.of(RELAY_IP, 0).addr, 36002, 36003),))
    await core.call()
    assert core.stream()["reason"] == "waiting-for-media"  # the caller sends to 36002
    assert core.stream(direction="callee->caller")["reason"] == "outside-media-ranges"
