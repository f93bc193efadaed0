"""Several programs on one softswitch: each is one client's, with notices and filters for its own ports."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.traffic import Wire, frame, rtp
from tests.softswitch.client import EXISTS, NOT_FOUND, Refused, Session, until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed
from tests.tools.entry import MediaRange, RelayEntry

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

RELAY = Endpoint.of("127.0.0.1", 0)
PHONE = Endpoint.of("127.0.0.9", 4_000)
A, B = MediaRange(RELAY.addr, 20_000, 20_999), MediaRange(RELAY.addr, 21_000, 21_999)


@pytest.fixture
def softswitch() -> Iterator[Softswitch]:
    with Softswitch(programs=["relay", "relay-b"], conference_copies=1_000) as made:
        yield made


def both(softswitch: Softswitch) -> tuple[Plane, Plane]:
    """The owner of each program, with media ranges of its own."""
    planes = Plane(softswitch.target), Plane(softswitch.target, program="relay-b")
    for plane, media in zip(planes, (A, B), strict=True):
        assert plane.add_media(media) is None
    return planes


def to(port: int) -> FiveTuple:
    return FiveTuple(PHONE, RELAY._replace(port=port))


def entry(port: int, ttl_ms: int = 0) -> RelayEntry:
    return RelayEntry(to(port), RELAY._replace(port=port + 2), PHONE._replace(port=5_000), ttl_ms)


def learned(plane: Plane, count: int) -> list[int]:
    """The relay ports of the notices that a client gets, and no more of them."""
    digests = plane.session.notices.digests
    until(lambda: digests.qsize() >= count, f"{count} notices")
    # One answer later nothing else is under way: both come by one connection.
    plane.totals()
    port = next(field.id for field in plane.session.schema.learns["learn"].fields if field.name == "dst_port")
    found = [digests.get_nowait()[1] for _ in range(digests.qsize())]
    return sorted(int.from_bytes(next(field.stream for field in data.fields if field.field_id == port), "big") for data in found)


def test_each_program_has_one_owner(softswitch: Softswitch) -> None:
    """Two agents at once; a second client of the same program is refused as on a switch."""
    a, b = both(softswitch)
    with a, b:
        for program, owner in (("relay", a), ("relay-b", b)):
            with pytest.raises(Refused, match=f"Client ID {owner.session.client_id} already owns this P4") as caught:
                Session(softswitch.target, program=program)
            assert caught.value.code == EXISTS
    with Session(softswitch.target, bind=False) as stranger, pytest.raises(Refused) as caught:
        stranger.program = "relay-c"
        stranger.rows(stranger.schema.tables["relay"])
    assert caught.value.code == NOT_FOUND


def test_conferences_are_the_first_programs(softswitch: Softswitch) -> None:
    with Session(softswitch.target, bind=False) as first, Session(softswitch.target, bind=False, program="relay-b") as second:
        assert first.schema.tables.find("pipe.Ingress.conference") is not None and second.schema.tables.find("pipe.Ingress.conference") is None
        with pytest.raises(Refused) as caught:
            second.clear(first.schema.tables["pipe.Ingress.conference"])
        assert caught.value.code == NOT_FOUND


def test_a_notice_goes_to_whom_the_port_belongs(softswitch: Softswitch) -> None:
    a, b = both(softswitch)
    with a, b, Wire(softswitch) as wire:
        for port in (A.first_port, A.last_port, B.first_port, B.last_port):
            wire.receive(frame(to(port), rtp()))
        assert learned(a, 2) == [A.first_port, A.last_port]
        assert learned(b, 2) == [B.first_port, B.last_port]


def test_ports_of_another_program_are_refused(softswitch: Softswitch) -> None:
    """Also where ranges overlap only, and after the other has gone: its calls go on."""
    a, b = both(softswitch)
    with b:
        with a:
            overlapping = MediaRange(RELAY.addr, A.last_port, B.last_port)
            for media in (B, overlapping):
                assert (a.add_media(media) or "").startswith(f"invalid: Ports {B.first_port} to {B.last_port} of 127.0.0.1 are another program's")
            assert [(media.first_port, media.last_port) for media in a.media()] == [(A.first_port, A.last_port)], "it sees its own ranges"
        assert (b.add_media(A) or "").startswith("invalid: ")
        assert b.remove_media(B) and b.add_media(MediaRange(RELAY.addr, 22_000, 22_999)) is None


def test_idle_notices_are_for_the_owner_of_the_port(softswitch: Softswitch) -> None:
    a, b = both(softswitch)
    with a, b:
        for plane in (a, b):
            plane.watch_idle(interval_ms=100)
        assert b.insert([entry(A.first_port, 200), entry(B.first_port, 200)]) == [None, None]
        assert a.idle_notice()[0] == to(A.first_port) and b.idle_notice()[0] == to(B.first_port)
        with pytest.raises(queue.Empty):
            a.idle_notice(0.5)


def test_an_owner_that_goes_takes_its_own_filters_with_it(softswitch: Softswitch) -> None:
    """Unknown sources reach the relay at its ports, and at nobody else's."""
    a, b = both(softswitch)
    with b, Plane(softswitch.target, bind=False) as looker:
        with a:
            for plane, media in ((a, A), (b, B)):
                assert plane.source_filter.put(RELAY._replace(port=media.first_port), 600_000, [PHONE.addr])
                assert plane.greylist.put(RELAY, 600_000, [(media.first_port, media.last_port)])
            assert sorted(b.greylist.ranges(RELAY)) == [(A.first_port, A.last_port), (B.first_port, B.last_port)], "a row of both"
        until(lambda: looker.greylist.ranges(RELAY) == [(B.first_port, B.last_port)], "the end of the first owner's ranges")
        assert b.source_filter.ends() == [RELAY._replace(port=B.first_port)]
        # A client that takes the program over empties the tables of before.
        b.source_filter.clear()
        b.greylist.clear()
        assert (b.source_filter.ends(), b.greylist.ends()) == ([], [])


def test_a_block_stays_for_as_long_as_somebody_wants_it(softswitch: Softswitch) -> None:
    attacker, other = Endpoint.of("10.66.6.6", 0), Endpoint.of("10.66.6.7", 0)
    a, b = both(softswitch)
    with a, b:
        assert a.blocklist.put(attacker, 600_000) and b.blocklist.put(attacker, 60_000) and a.blocklist.put(other, 600_000)
        assert (b.blocklist.remaining(attacker) or 0) > 60_000, "the longer time"
        a.blocklist.clear()
        assert b.blocklist.ends() == [attacker]
        b.blocklist.clear()
        assert b.blocklist.ends() == []


def test_owners_of_all_ports_have_to_be_there_for_entries_to_keep_others_out(softswitch: Softswitch) -> None:
    """While one is away its phones may move, and nobody else would tell; so packets of other sources reach the relay."""
    a, b = both(softswitch)
    stranger = FiveTuple(PHONE._replace(port=9), RELAY._replace(port=B.first_port))

    def keeps_out() -> bool:
        wire.receive(frame(to(B.first_port), rtp()))
        return b.trace(stranger)["verdict"] == "drop"

    with b, Wire(softswitch) as wire:
        with a:
            assert b.insert([entry(B.first_port)]) == [None]
            until(keeps_out, "an entry that keeps others out")
        until(lambda: not keeps_out(), "an entry that lets others through")
        with Plane(softswitch.target):
            until(keeps_out, "an entry that keeps others out again")


def test_after_a_restart_ranges_belong_to_whoever_writes_them(softswitch: Softswitch) -> None:
    """The ranges are in the kernel still, but not whose they are: an agent writes its own at each connect."""
    a, b = both(softswitch)
    assert a.insert([entry(A.first_port)]) == [None]
    softswitch.restart()
    for plane in (a, b):
        plane.reconnect()
    with a, b, Wire(softswitch) as wire:
        assert (a.media(), b.media()) == ([], [])
        assert (a.add_media(A), b.add_media(B)) == (None, None)
        assert list(a.entries()) == [to(A.first_port)]
        wire.receive(frame(to(B.first_port), rtp()))
        assert learned(b, 1) == [B.first_port]


@pytest.mark.parametrize(
    ("programs", "why"),
    [([], "programs: 0 names; it is to be 1 to 64"), ([f"p{number}" for number in range(65)], "programs: 65 names; it is to be 1 to 64"), (["a", "b", "a"], "programs: a is named twice")],
    ids=["none", "many", "twice"],
)  # fmt: skip
def test_names_that_cannot_be_served_are_refused(programs: list[str], why: str) -> None:
    """By the daemon itself, with the exit code of a wrong configuration; nothing is left in the kernel."""
    softswitch = Softswitch(programs=programs)
    try:
        with pytest.raises(SoftswitchFailed) as failed:
            softswitch.start()
        assert failed.value.code == 78 and why in failed.value.log, failed.value
        assert not any(softswitch.pin_dir.iterdir())
    finally:
        softswitch.unload()
