"""Guarded ports follow the parties of calls: who is heard, from when, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from shunt import guard
from shunt.calls.model import Side
from shunt.dialogs import DialogWatch
from shunt.hep.listener import SipSighting
from shunt.net import Endpoint
from shunt.tables.entry import MediaRange, Outcome, Result
from tests.agent.parts import RELAY_IP, Core


class Guarded(Core):
    """The core with `learning.first_packets: named`."""

    def __init__(self, *careful: MediaRange) -> None:
        super().__init__()
        self.offloader.guard_ports(careful)

    def heard(self, port: int) -> set[str] | None:
        found = self.table.guarded.get(Endpoint.of(RELAY_IP, port))
        return None if found is None else {Endpoint(addr, 0).ip for addr in found}

    async def closed_port(self) -> int:
        """The port for the callee of a call whose callee is not known yet, once it hears nobody."""
        port = int((await self.say("Uc0,8 c1 10.91.1.2 6000 A;1")).split()[0])
        await asyncio.sleep(1.5 * guard._GRACE_S)
        await self.settle()
        return port


async def test_a_port_hears_nobody_until_the_answer_and_then_the_party():
    core = Guarded()
    to_callee = await core.closed_port()
    assert core.heard(to_callee) == set()
    to_caller = int((await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    assert core.heard(to_callee) == {"10.91.2.2"} and core.heard(to_caller) == {"10.91.1.2"}
    await core.say("D c1 A B")
    assert core.table.guarded == {}


async def test_each_of_several_ports_hears_nobody_in_the_end():
    """One timer does for all of them: the second call comes while it runs, the third when it has ended."""
    core = Guarded()
    ports = []
    for name, pause in (("c1", 0.5), ("c2", 1.5), ("c3", 0.0)):
        ports.append(int((await core.say(f"Uc0,8 {name} 10.91.1.2 6000 A;1")).split()[0]))
        await asyncio.sleep(pause * guard._GRACE_S)
    async with asyncio.timeout(5):
        while [core.heard(port) for port in ports] != [set()] * 3:
            await asyncio.sleep(0.01)
    assert not core.offloader._guard._open


async def test_a_phone_that_answers_at_once_never_meets_a_closed_port():
    core = Guarded()
    written = []
    write = core.table.guard

    async def noted(ports: Mapping[Endpoint, tuple[bytes, ...]], ttl_ms: int) -> Result:
        written.append(dict(ports))
        return await write(ports, ttl_ms)

    core.table.guard = noted
    to_callee = int((await core.proxy.handle(b"Uc0,8 c1 10.91.1.2 6000 A;1", b"1_2_3", "127.0.0.1")).split()[0])
    await core.proxy.handle(b"Lc0,8 c1 10.91.2.2 7000 A;1 B;1", b"1_2_4", "127.0.0.1")
    await core.settle()
    assert core.heard(to_callee) == {"10.91.2.2"}
    assert all(heard for ports in written for heard in ports.values())


async def test_sip_messages_name_a_party_too():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    core.book.sight("c1", "A", bytes([10, 91, 3, 2]))
    await core.settle()
    assert core.heard(pl) == {"192.168.50.2", "10.91.3.2"}


async def test_whom_the_agent_believes_is_heard():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for n in range(6):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        core.now += 0.03
    assert core.heard(pl) == {"192.168.50.2", "10.91.3.2"}


async def test_the_latest_addresses_have_room():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for n in range(10):
        core.book.sight("c1", "A", bytes([10, 91, 3, n]))
    await core.settle()
    assert core.heard(pl) == {f"10.91.3.{n}" for n in (4, 5, 6, 7)}, "of at most eight that are sighted"


async def test_a_leg_that_learns_nothing_needs_no_guard():
    core = Guarded()
    to_callee = int((await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")).split()[0])
    to_caller = int((await core.say("Lac0,8 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    assert core.heard(to_callee) is None and core.heard(to_caller) == {"10.91.1.2"}


async def test_changes_while_a_write_is_under_way_are_not_lost():
    core = Guarded()
    core.table.delay = 0.01
    for number in range(5):
        await core.call(f"c{number}")
    assert len(core.table.guarded) == 10
    await asyncio.gather(*(core.say(f"D c{number} A B") for number in range(5)))
    await core.settle()
    assert core.table.guarded == {}


async def test_who_is_kept_out_does_not_wait_for_company(monkeypatch):
    core = Guarded()
    to_callee = await core.closed_port()
    monkeypatch.setattr(guard, "_COMPANY_S", 60.0)
    async with asyncio.timeout(10):
        to_caller = int((await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    assert core.heard(to_callee) == {"10.91.2.2"} and core.heard(to_caller) == {"10.91.1.2"}


async def test_changes_of_many_calls_go_out_together(monkeypatch):
    core = Guarded()
    await core.call("before")  # its parties are known from then on
    core.table.guarded.clear()
    monkeypatch.setattr(guard, "_COMPANY_S", 1.0)
    writes = []
    write = core.table.guard

    async def noted(ports: Mapping[Endpoint, tuple[bytes, ...] | None], ttl_ms: int) -> Result:
        writes.append(len(ports))
        return await write(ports, ttl_ms)

    core.table.guard = noted
    for number in range(10):
        await core.proxy.handle(f"Uc0,8 c{number} 10.91.1.2 6000 A;1".encode(), b"1_2_3", "127.0.0.1")
        await core.proxy.handle(f"Lc0,8 c{number} 10.91.2.2 7000 A;1 B;1".encode(), b"1_2_4", "127.0.0.1")
    await core.settle()
    assert writes == [20] and len(core.table.guarded) == 20


async def test_without_the_option_nothing_is_guarded():
    core = Core()
    await core.call()
    assert core.table.guarded == {}


async def test_a_data_plane_that_cannot_is_told_of_once(caplog):
    core = Guarded()

    async def cannot(ports: object, ttl_ms: int) -> Result:
        return Result(Outcome.REJECTED, "this data plane cannot")

    core.table.guard = cannot
    await core.call("c1")
    await core.call("c2")
    assert [record.getMessage() for record in caplog.records if "guarded" in record.getMessage()] == ["relay ports of calls are not guarded: this data plane cannot"]


def sip(method: str | None, status: int | None, source: str, destination: str, *, to_tag: str | None = None) -> SipSighting:
    """A message of call c1, whose caller has tag A."""
    return SipSighting(method, status, "c1", "A", to_tag, "INVITE" if method is None else method, Endpoint.parse(source), Endpoint.parse(destination), ())


async def test_who_is_called_and_who_rings_is_heard_before_the_answer():
    core = Guarded()
    watch = DialogWatch(core.offloader)
    to_callee = int((await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")).split()[0])
    watch.on_sighting(sip("INVITE", None, "10.91.1.2:5060", "10.91.1.1:5060"))  # the copy may come after the offer
    watch.on_sighting(sip("INVITE", None, "10.91.1.1:5060", "10.91.2.2:5060"))
    await core.settle()
    assert core.heard(to_callee) == {"10.91.2.2"}, "and not the SIP server"
    watch.on_sighting(sip(None, 180, "10.91.2.3:5060", "10.91.1.1:5060", to_tag="B"))
    await core.settle()
    assert core.heard(to_callee) == {"10.91.2.2", "10.91.2.3"}
    await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    watch.on_sighting(sip(None, 180, "10.91.2.9:5060", "10.91.1.1:5060", to_tag="C"))
    await core.settle()
    assert core.heard(to_callee) == {"10.91.2.2", "10.91.2.3"}, "he has been answered for"


async def test_of_a_call_that_began_at_the_relay_alone_the_caller_is_heard():
    core = Guarded()
    core.book.sight("c1", "A", bytes([10, 91, 1, 2]))
    to_caller = int((await core.say("Uc0,8 c1 10.91.2.2 7000 B;1 A;1")).split()[0])  # the answer, where OpenSIPS takes U for it
    assert core.heard(to_caller) == {"10.91.1.2"}


async def test_a_bye_ends_the_guard_and_its_refusal_brings_it_back():
    core = Guarded()
    watch = DialogWatch(core.offloader)
    pl, pu = await core.call()
    watch.on_sighting(sip("BYE", None, "10.91.1.2:5060", "10.91.1.1:5060", to_tag="B"))
    await core.settle()
    assert core.table.guarded == {}
    core.offloader.resume(core.book.call("c1").lines[0])
    await core.settle()
    assert core.heard(pl) == {"10.91.1.2"} and core.heard(pu) == {"10.91.2.2"}


async def test_ports_of_a_relay_that_is_careful_itself_are_not_guarded():
    core = Guarded(MediaRange(Endpoint.parse(f"{RELAY_IP}:0").addr, 36000, 36001))
    pl, pu = await core.call()
    assert (pu, pl) == (36000, 36002)
    assert core.heard(pu) is None and core.heard(pl) == {"10.91.1.2"}


async def test_signalling_that_names_the_same_address_again_makes_the_guard_last():
    core = Guarded()
    pl, _ = await core.call()
    core.table.guarded.clear()  # its time was up
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1 B;1")
    assert core.heard(pl) == {"10.91.1.2"}


async def test_guards_are_written_again_when_the_data_plane_is_back_and_others_go():
    core = Guarded()
    pl, pu = await core.call()
    core.table.guarded = {Endpoint.of(RELAY_IP, 40000): ()}
    await core.offloader.reconcile()
    await core.settle()
    assert core.heard(pl) == {"10.91.1.2"} and core.heard(pu) == {"10.91.2.2"} and core.heard(40000) is None


async def test_a_data_plane_without_guards_is_asked_for_none(caplog):
    caplog.set_level("INFO")
    core = Guarded()
    core.table.guards_ports = False
    await core.offloader.reconcile()
    await core.call()
    assert core.table.guarded == {}
    assert [record.getMessage() for record in caplog.records if "cannot guard" in record.getMessage()]


async def test_a_fax_from_behind_a_nat_is_heard():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for _ in range(6):
        await core.packet("10.91.3.2:41234", pl, version=0)
        core.now += 0.03
    assert core.heard(pl) == {"192.168.50.2", "10.91.3.2"}
    assert core.book.call("c1").lines[0].legs[Side.CALLER].rtp.learned is None, "heard, not believed"


async def test_of_two_who_fax_the_relay_hears_neither():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for _ in range(10):
        await core.packet("10.91.3.2:41234", pl, version=0)
        await core.packet("10.91.4.2:1000", pl, version=0)
        core.now += 0.03
    assert core.heard(pl) == {"192.168.50.2"}


async def test_relays_that_are_not_careful_have_wary_ports_and_parties_are_known():
    careful, other = (MediaRange(Endpoint.parse(f"{RELAY_IP}:0").addr, first, first + 999) for first in (35000, 36000))
    core = Guarded(careful)
    core.offloader.media = [careful, other]
    await core.offloader.reconcile()
    assert core.table.wary == [other] and core.table.known == set()
    watch = DialogWatch(core.offloader)
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    watch.on_sighting(sip("INVITE", None, "10.91.1.2:5060", "10.91.1.1:5060"))
    watch.on_sighting(sip("INVITE", None, "10.91.1.1:5060", "10.91.2.2:5060"))
    await core.settle()
    assert core.table.known == {bytes([10, 91, 2, 2])}, "whom the SIP server calls, and not itself"
    await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    assert bytes([10, 91, 1, 2]) in core.table.known, "and the caller once he is answered"


async def test_an_answer_waits_for_the_guard_of_a_party_that_is_not_known_and_of_no_other():
    core = Guarded()
    for call_id, waits in (("c1", True), ("c2", False)):
        await core.say(f"Uc0,8 {call_id} 10.91.1.2 6000 A;1")
        core.table.delay = 0.01
        to_caller = int((await core.proxy.handle(f"Lc0,8 {call_id} 10.91.2.2 7000 A;1 B;1".encode(), b"1_2_4", "127.0.0.1")).split()[0])
        assert (core.heard(to_caller) is not None) == waits, call_id
        await core.settle()
        core.table.delay = 0
        assert core.heard(to_caller) == {"10.91.1.2"}


async def test_no_answer_waits_for_ever():
    core = Guarded()
    core.table.delay = 30
    began = time.monotonic()
    await core.proxy.handle(b"Uc0,8 c1 10.91.1.2 6000 A;1", b"1_2_3", "127.0.0.1")
    assert await core.proxy.handle(b"Lc0,8 c1 10.91.2.2 7000 A;1 B;1", b"1_2_4", "127.0.0.1")
    assert time.monotonic() - began < 10
    await core.offloader.close()


async def test_parties_of_running_calls_are_known_before_strangers_are_met_with_caution():
    core = Guarded()
    core.offloader.media = [MediaRange(Endpoint.parse(f"{RELAY_IP}:0").addr, 36000, 36999)]
    pl, pu = await core.call()
    await core.packet("10.91.1.2:6000", pl)
    told = []
    for name in ("know", "be_wary"):
        setattr(core.table, name, _noting(told, name, getattr(core.table, name)))
    await core.offloader.reconcile()
    assert told == ["know", "be_wary"] and bytes([10, 91, 1, 2]) in core.table.known


async def test_who_has_called_last_is_known_when_there_is_no_room_for_all(monkeypatch):
    monkeypatch.setattr(guard, "_KNOWN", 3)
    core = Guarded()
    core.table.known_room = 3
    for number in range(2, 9):
        await core.say(f"Uc0,8 c{number} 10.91.1.{number} 6000 A;1")
        await core.say(f"Lc0,8 c{number} 10.91.2.{number} 7000 A;1 B;1")
        await core.settle()
        assert core.table.known >= {bytes([10, 91, 1, number]), bytes([10, 91, 2, number])} and len(core.table.known) <= 3


async def test_whom_an_agent_before_this_one_knew_makes_room_too(monkeypatch):
    monkeypatch.setattr(guard, "_KNOWN", 3)
    core = Guarded()
    core.table.known_room = 3
    core.table.known = {bytes([10, 91, 9, number]) for number in range(3)}
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    await core.settle()
    assert core.table.known == {bytes([10, 91, 1, 2]), bytes([10, 91, 2, 2])}


def _noting(told, name, write):
    async def noted(*arguments):
        told.append(name)
        return await write(*arguments)

    return noted
