"""The section `rooms:` of the configuration, and the shipped configuration."""

from __future__ import annotations

import re

import pytest

from shunt.config.load import ConfigError, loads
from tests.lab.processes import ROOT

BASE = "relays: [{name: a, socket: 'udp:127.0.0.1:22222', media: [{address: 192.0.2.1, ports: '35000-36000'}]}]\n"
WHOLE = BASE + "data_plane: {}\nconference: {address: 192.0.2.1}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (BASE + "rooms: {}\n", "rooms: needs a conference section"),
        (WHOLE + "rooms: {edges: ['/run/edge.sock']}\n", "rooms.edges: '/run/edge.sock' is not unix:/PATH"),
        (WHOLE + "rooms: {edges: ['unix:/a', 'unix:/a']}\n", "rooms.edges: an edge is listed twice"),
        (WHOLE + "rooms: {audio: [mp3]}\n", "rooms.audio: 'mp3' is none of opus, PCMU, PCMA, G722"),
        (WHOLE + "rooms: {video: [VP8, vp8]}\n", "rooms.video: a codec is listed twice"),
        (WHOLE + "rooms: {url: 'ftp://x'}\n", "rooms.url"),
        (WHOLE + "rooms: {edge: []}\n", "did you mean edges?"),
    ],
)
def test_errors_name_the_key(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loads(text)
    assert error in str(raised.value)


def test_the_first_pattern_that_fits_says_which_codecs_a_room_has() -> None:
    rooms = loads(WHOLE + "rooms: {codecs_of: [{rooms: 'conf-*', audio: [pcmu], video: []}, {rooms: '*', audio: [G722]}]}\n").rooms
    assert rooms is not None
    assert rooms.codecs("conf-7") == {"audio": ["PCMU"], "video": [], "screen": []}
    assert rooms.codecs("board") == {"audio": ["G722"], "video": ["VP8", "H264"], "screen": ["VP8", "H264"]}


def test_the_shipped_configuration_passes_the_check_with_its_commented_values_too() -> None:
    shipped = (ROOT / "opensips-config/rooms.yaml").read_text()
    local = loads(shipped)
    assert local.rooms is not None and local.api.tls is None
    public = loads(re.sub(r"^  # (\w+: .*)$", r"  \1", shipped.replace('  listen: "127.0.0.1:8077"\n', ""), flags=re.MULTILINE))
    assert public.rooms is not None and public.rooms.url is not None and public.api.tls is not None
    assert public.edge is not None and public.edge.advertise != []
