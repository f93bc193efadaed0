"""Records of participants with real processes: every packet that went in or out is in one of them, over changes of the trees, a killed agent and a killed
operator daemon."""

from __future__ import annotations

import csv
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conference_control.lab import Bridge, Party, Phone, bridge

pytestmark = [
    pytest.mark.netns,
    pytest.mark.usefixtures("agent_binary"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces and XDP"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]

_BETWEEN = 60  # 0.3 s, for a machine that has little time for who reads the counters


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Bridge]:
    """A bridge with an empty conference `room`."""
    with bridge(tmp_path) as made:
        made.ask("POST", "/v1/conferences?name=room")
        made.await_ready()
        yield made


def enter(room: Bridge, host: str, name: str) -> Party:
    party = room.party(host, name)
    party.talk(room.join(party))
    return party


def all_hear(parties: list[Party]) -> None:
    for one in parties:
        one.await_packets(*(other for other in parties if other is not one))


def by_name(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["participant"]: one for one in records}


def test_every_packet_is_in_a_record(room: Bridge) -> None:
    """Two, then three; an agent killed; a leave, an end: what each record says came and went is what was sent and heard."""
    ann, bob = enter(room, "caller", "ann"), enter(room, "natcaller", "bob")
    room.await_design("two-party")
    all_hear([ann, bob])
    cem = enter(room, "callee", "cem")
    room.await_design("NRA")
    all_hear([ann, bob, cem])
    room.agent.kill()
    time.sleep(0.2)
    room.start_agent()
    room.await_ready()
    room.await_design("NRA")
    cem.sent += 40  # as many are lost on their way here
    all_hear([ann, bob, cem])
    cem.hush()
    room.operator.kill()
    room.leave_at_agent(cem)
    room.start_operator()
    (first,) = room.records(1)
    room.await_design("two-party")
    all_hear([ann, bob])
    parties = [ann, bob, cem]
    for one in (ann, bob):
        one.hush()
    room.ask("DELETE", "/v1/conferences/room")
    records = by_name(room.records(3))
    assert first == records["cem"]
    assert {name: one["reason"] for name, one in records.items()} == {"ann": "ended", "bob": "ended", "cem": "removed"}
    for one in parties:
        said, (media,) = records[one.name], records[one.name]["media"]
        assert (said["conference"], said["call_id"], media["medium"]) == ("room", None, "audio")
        # From the first packet that anybody got, everything that was sent came in, and was counted once, but what came between the
        # reading and the end of a row that still had packets: relay entries, when the third joined.
        most = max(len(other.received(one)) for other in parties if other is not one)
        assert 0 <= most - media["packets"] <= _BETWEEN and media["bytes"] == media["packets"] * 200
        assert 0 <= sum(len(numbers) for numbers in one.got.values()) - media["received_packets"] <= _BETWEEN
        assert one is not cem or media["packets"] == most, "no row of its own went while it talked"
        assert (media["lost"], media["reordered"], media["duplicates"]) == (40 if one is cem else 0, 0, 0), one.name
        assert media["mos"] is None and media["jitter_ms"] is None and "96 is dynamic" in media["note"]
        assert 0 < said["duration_s"] < 60 and said["joined"] < said["left"]
    assert records["cem"]["media"][0]["source"].endswith(":" + str(cem.socket.getsockname()[1]))
    assert records["bob"]["media"][0]["source"].startswith("198.18.3.2:"), "the NAT's address"
    deadline = time.monotonic() + 120
    while room.ask("GET", "/v1/status")["cdr"]["written"] != 3:  # it counts when both files have them
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rows = list(csv.DictReader((room.work / "conferences.csv").open(newline="")))
    assert {row["participant"]: (row["reason"], row["packets"], row["mos"]) for row in rows} == {name: (one["reason"], str(one["media"][0]["packets"]), "") for name, one in records.items()}


def test_a_call_is_rated_where_its_codec_is_known(room: Bridge) -> None:
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    for phone in phones:
        phone.party.payload_type = 0
        assert phone.call("room") == 200
    cem = enter(room, "natcaller", "cem")
    room.await_design("NRA")
    all_hear([cem, *(phone.party for phone in phones)])
    time.sleep(0.5)
    assert phones[0].bye() == 200
    (said,) = room.records(1)
    (media,) = said["media"]
    assert said["reason"] == "bye" and said["call_id"] == f"{phones[0].party.ssrc}@198.18.1.2"
    assert (media["codec"], media["payload_type"], media["lost"]) == ("PCMU", 0, 0)
    # Time stamps step by 20 ms, and packets come every 5.
    assert 3.0 < media["mos"] < 4.5 and 10 < media["jitter_ms"] < 20
