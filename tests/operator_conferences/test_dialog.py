"""Calls as they are kept with their participants."""

from __future__ import annotations

import json

import pytest
from aiosipua import Dialog

from shunt.operator.conferences.dialog import Seat


def seat() -> Seat:
    made = Seat("room", "ann", "1@192.0.2.7", ("192.0.2.7", 5060), ["audio", None], ["192.0.2.7"], "", 1800, "uac", name="Zoë")
    made.note(Dialog(call_id="1@192.0.2.7", local_tag="us", remote_tag="them", remote_uri="sip:ann@192.0.2.7", remote_target="sip:ann@192.0.2.7:5066", route_set=["<sip:proxy;lr>"], remote_cseq=4))
    return made


def test_a_call_comes_back_as_it_was_kept() -> None:
    kept = json.loads(json.dumps(seat().kept()))
    again = Seat.read(kept)
    assert again == seat() and kept["name"] == "Zoë"
    dialog = seat().resumed()
    assert dialog.id == ("1@192.0.2.7", "us", "them") and dialog.state.value == "confirmed" and dialog.route_set == ["<sip:proxy;lr>"]
    assert dialog.create_request("BYE").uri == "sip:ann@192.0.2.7:5066"


def test_who_came_by_the_api_has_no_call_and_what_is_not_understood_is_said() -> None:
    assert Seat.read(None) is None and Seat.read({"whip": 1}) is None
    with pytest.raises(ValueError, match="format 2"):
        Seat.read(seat().kept() | {"format": 2})
    damaged = seat().kept()
    del damaged["sip"]["source"]
    with pytest.raises(ValueError, match="KeyError"):
        Seat.read(damaged)
    damaged = seat().kept()
    damaged["sip"]["dialog"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        Seat.read(damaged)


def test_a_newer_versions_field_is_passed_over() -> None:
    kept = seat().kept()
    kept["sip"]["later"] = 1
    assert Seat.read(kept) == seat()
