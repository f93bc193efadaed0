"""Records of participants with real processes: every packet that went in or out is in one of them, over changes of the trees, a killed agent and a killed
operator daemon."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conference_control.lab import Bridge, Party, Phone, bridge, come_to_rest

pytestmark = [
    pytest.mark.netns,
    pytest.mark.usefixtures("agent_binary"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


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


def silent(parties: list[Party]) -> None:
    """Nobody talks from now on, and what was sent has arrived."""
    for one in parties:
        one.hush()
    assert come_to_rest(lambda: [len(one.received(other)) for one in parties for other in parties])


def talk_on(parties: list[Party]) -> None:
    for one in parties:
        one._talking.set()


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
    # What comes between the reading and the end of a row is in no record: nobody talks when rows go.
    silent([ann, bob])
    cem = enter(room, "callee", "cem")
    room.await_design("NRA")
    talk_on([ann, bob])
    all_hear([ann, bob, cem])
    room.agent.kill()
    time.sleep(0.2)
    room.start_agent()
    room.await_ready()
    room.await_design("NRA")
    cem.sent += 40  # as many are lost on their way here
    all_hear([ann, bob, cem])
    silent([ann, bob, cem])
    room.operator.kill()
    room.leave_at_agent(cem)
    room.start_operator()
    (first,) = room.records(1)
    room.await_design("two-party")
    talk_on([ann, bob])
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
        # From the first packet that anybody got, everything that was sent came in, and was counted once.
        most = max(len(other.received(one)) for other in parties if other is not one)
        assert media["packets"] == most and media["bytes"] == media["packets"] * 200
        assert media["received_packets"] == sum(len(numbers) for numbers in one.got.values())
        assert (media["lost"], media["reordered"], media["duplicates"]) == (40 if one is cem else 0, 0, 0), one.name
        assert media["mos"] is None and media["jitter_ms"] is None and "96 is dynamic" in media["note"]
        assert 0 < said["duration_s"] and said["joined"] < said["left"]
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
    assert 1.0 <= media["mos"] <= 4.5 and media["jitter_ms"] > 0
