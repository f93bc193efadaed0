"""The `conference:` section: what is wrong is named with key and line."""

from __future__ import annotations

import pytest

from shunt.config.load import ConfigError, loads

_BASE = "relays: [{name: local, socket: 'udp:127.0.0.1:22222', media: [{address: 192.0.2.1, ports: '35000-36000'}]}]\ndata_plane: {target: '127.0.0.1:50052'}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (_BASE + "conference: {ports: '20000-20099'}\n", "3:13: conference.address: this key is missing"),
        (_BASE + "conference: {address: 192.0.2.1, ports: '35500-35600'}\n", "3:41: conference.ports: 192.0.2.1 ports 35500-35600 overlap 35000-36000 of relays.0.media.0.ports"),
        (_BASE + "conference: {address: 192.0.2.1, selector: 'math:pi'}\n", "3:44: conference.selector: math:pi is not a function"),
        (_BASE + "conference: {address: 192.0.2.1, port: 5}\n", "3:34: conference.port: unknown key; did you mean ports?"),
        (_BASE + "conference: {address: 192.0.2.1, sip: 'udp:192.0.2.1:20002'}\n", "conference.sip: udp:192.0.2.1:20002 lies within the media ports 192.0.2.1 20000-29999"),
        (_BASE + "conference: {address: 192.0.2.1, tiling: {codec: H261}}\n", "3:42: conference.tiling: needs a mixer (conference.mixer)"),
        (_BASE + "conference: {address: 192.0.2.1, mixer: ['unix:/m.sock'], tiling: {codec: H261, places: 9}}\n", "conference.tiling.places: a CIF picture of H.261 has four"),
        (_BASE + "conference: {address: 192.0.2.1, mixer: ['unix:/m.sock'], tiling: {codec: H261, columns: 4}}\n", "conference.tiling.columns: a CIF picture of H.261 cannot grow"),
        (_BASE + "conference: {address: 192.0.2.1, mixer: ['unix:/m.sock'], tiling: {codec: H264, places: 64, columns: 4}}\n", "conference.tiling.columns: a stream has at most 255 tiles"),
        (_BASE.splitlines()[0] + "\nconference: {address: 192.0.2.1}\n", "2:13: conference: needs a data_plane"),
        (
            _BASE + "cdr: {csv: /var/log/c.csv, json_lines: /var/log/c.jsonl}\nconference: {address: 192.0.2.1, cdr: {csv: /var/log/conf.csv, json_lines: /var/log/x/../c.csv}}\n",
            "4:76: conference.cdr.json_lines: is the file of cdr.csv too",
        ),
    ],
)
def test_configuration_errors_name_key_and_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loads(text)
    assert error in str(raised.value)


def test_without_the_section_there_are_no_conferences() -> None:
    assert loads(_BASE).conference is None
    assert str(loads(_BASE + "conference: {address: 192.0.2.1}\n").conference.ports) == "20000-29999"


def test_tiled_streams_of_each_new_conference() -> None:
    tiling = loads(_BASE + "conference: {address: 192.0.2.1, mixer: ['unix:/m.sock'], tiling: {codec: H265, places: 9}}\n").conference.tiling
    assert (tiling.codec, tiling.places, tiling.payload_type, tiling.predicted) == ("H265", 9, None, False)
