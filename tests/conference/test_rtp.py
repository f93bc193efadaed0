"""RTP headers, header extensions, dependency descriptors and payload descriptors: vectors by hand, Chromium's captures, noise."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.conference import descriptor, payload, rtp
from shunt.conference.rtp import MediaError
from tests.conference import captures

HEADER = "b02e06d38c9a9a8bf8576f4f"  # version 2, extension, payload type 46, number 1747
AV1 = "c00001800214eaa860414d1410208427027f0167"  # Chromium, AV1 L1T3, 640x360
AV1_MOVED = "85009780a214eaa860414d1410208427013f00b3"  # the same after a change of resolution: offset 5
VP8 = "c000018002044eaaaf2860414d34538a0940409fc059c0"  # seven templates, no chain
H264 = "800001800214eaa860414d1410208426"  # 16 bytes: fits the one-byte form, no resolution


def packet(profile: str, extension: str, body: str = "00") -> bytes:
    data = bytes.fromhex(extension)
    assert len(data) % 4 == 0
    return bytes.fromhex("90" + HEADER[2:] + profile) + (len(data) // 4).to_bytes(2, "big") + data + bytes.fromhex(body)


def found(data: bytes) -> dict[int, str]:
    header = rtp.parse_header(data)
    return {element.id: data[element.data].hex() for element in rtp.elements(data, header)}


def test_header_with_everything():
    data = bytes.fromhex("b2ee06d38c9a9a8bf8576f4f" + "00000001" + "00000002" + "bede0001" + "10aa0000" + "c0ffee" + "000003")
    header = rtp.parse_header(data)
    assert (header.marker, header.payload_type, header.sequence) == (True, 110, 0x06D3)
    assert (header.timestamp, header.ssrc, header.csrcs) == (0x8C9A9A8B, 0xF8576F4F, (1, 2))
    assert data[header.payload] == b"\xc0\xff\xee"
    assert found(data) == {1: "aa"}


def test_one_byte_form_with_padding_between_and_in_any_order():
    assert found(packet("bede", "22010203" + "00" + "c2c00001" + "00" + "40ff")) == {2: "010203", 12: "c00001", 4: "ff"}
    assert found(packet("bede", "c2c00001" + "22010203")) == {12: "c00001", 2: "010203"}
    assert found(packet("bede", "10aa" + "f0" + "c2c00001" + "00")) == {1: "aa"}  # id 15 ends the list
    assert found(packet("bede", "01aabb" + "c2c00001" + "00")) == {12: "c00001"}  # id 0 that carries data is skipped


def test_two_byte_form_with_long_and_empty_elements():
    assert found(packet("1000", "0c14" + AV1 + "0200" + "00000d0101" + "000000")) == {12: AV1, 2: "", 13: "01"}
    assert found(packet("100f", "0c03c00001" + "000000")) == {12: "c00001"}  # appbits are anybody's
    assert found(packet("beef", "0c03c00001" + "000000")) == {}  # neither form: RFC 3550 leaves it to others


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("80", "1 bytes"), ("4" + HEADER[1:], "version 1"), ("90" + HEADER[2:], "extension header at byte 12 is cut"),
        ("90" + HEADER[2:] + "bede0002" + "00000000", "header of 24 bytes in a packet of 20"), ("8f" + HEADER[2:], "header of 72"),
        ("a0" + HEADER[2:] + "0000", "padding of 0"), ("a0" + HEADER[2:] + "0004", "padding of 4"), ("a0" + HEADER[2:], "padding"),
    ],
)
def test_bad_headers_are_named(data, words):
    with pytest.raises(MediaError, match=words):
        rtp.parse_header(bytes.fromhex(data))


@pytest.mark.parametrize(("profile", "extension"), [("bede", "22000000" + "000000c3"), ("1000", "0c08c000" + "01000000"), ("1000", "0000000c")])
def test_an_element_beyond_the_extension_is_refused(profile, extension):
    with pytest.raises(MediaError, match="header extension 12"):
        found(packet(profile, extension))


def test_structure_of_av1():
    parsed = descriptor.parse(bytes.fromhex(AV1))
    structure = parsed.structure
    assert parsed.mandatory == (True, True, 0, 1) and parsed.active_targets == 0b111
    assert structure.offset == 0 and structure.resolutions == ((640, 360),) and structure.protected_by == (0, 0, 0)
    assert structure.targets == ((0, 0), (0, 1), (0, 2))
    assert structure.layers() == {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 2), 4: (0, 2)}
    assert [template.fdiffs for template in structure.templates] == [(), (4,), (2,), (1,), (1,)]
    assert [template.chain_fdiffs for template in structure.templates] == [(0,), (4,), (2,), (1,), (3,)]
    assert ["".join("-DSR"[dti] for dti in template.dtis) for template in structure.templates] == ["SSS", "SSS", "-DS", "--D", "--D"]
    assert [[target for target in range(3) if structure.in_target(i, target)] for i in range(5)] == [[0, 1, 2], [0, 1, 2], [1, 2], [2], [2]]


def test_structures_differ_by_codec_and_offsets_move():
    vp8 = descriptor.parse(bytes.fromhex(VP8)).structure
    assert [layer for _, layer in sorted(vp8.layers().items())] == [(0, 0)] * 3 + [(0, 1)] * 2 + [(0, 2)] * 2
    assert vp8.templates[4].fdiffs == (4, 2) and vp8.protected_by == ()
    assert descriptor.parse(bytes.fromhex(H264)).structure.resolutions == ()
    moved = descriptor.parse(bytes.fromhex(AV1_MOVED))
    assert moved.mandatory.template_id == 5 and moved.structure.offset == 5 and moved.structure.resolutions == ((320, 180),)
    assert moved.structure.layers()[8] == (0, 2)
    with pytest.raises(MediaError, match="template id 3 is not in 5..9"):
        descriptor.parse(bytes.fromhex("c30098"), moved.structure)


def bits(*fields: tuple[int, int]) -> bytes:
    text = "".join(format(value, f"0{width}b") for value, width in fields)
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")


def test_custom_fields_and_active_targets():
    known = descriptor.parse(bytes.fromhex(AV1)).structure
    data = bits(
        (1, 1), (0, 1), (3, 6), (700, 16), (0, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0b011, 3), (0, 2), (1, 2), (3, 2),
        (1, 2), (4, 4), (2, 2), (99, 8), (3, 2), (4095, 12), (0, 2), (77, 8),
    )
    parsed = descriptor.parse(data, known)
    assert parsed.mandatory == (True, False, 3, 700) and parsed.active_targets == 0b011 and parsed.structure is None
    assert parsed.template == (0, 2, (0, 1, 3), (5, 100, 4096), (77,))


def test_template_ids_wrap_at_64():
    fields = [(1, 1), (1, 1), (63, 6), (9, 16), (1, 1), (0, 4), (63, 6), (1, 5), (1, 2), (3, 2), (2, 2), (2, 2), (0, 2), (1, 2), (0, 1), (0, 1), (0, 2), (0, 1)]
    structure = descriptor.parse(bits(*fields)).structure
    assert structure.layers() == {63: (0, 0), 0: (0, 1)} and structure.targets == ((0, 0), (0, 1))
    assert descriptor.parse(bytes.fromhex("c0000a"), structure).template.temporal == 1


def test_chain_fields_are_not_whole_bits():
    """ns(n): of three chains the first takes one bit, the others two; a count of up to four takes two bits or three."""
    fields = [(1, 1), (1, 1), (0, 6), (9, 16), (1, 1), (0, 4), (0, 6), (3, 5), (3, 2), *[(2, 2)] * 4, (0, 1)]
    chains = [(0b110, 3), (0b10, 2), (0b11, 2), (0b0, 1), (0b11, 2), (5, 4), (6, 4), (7, 4), (0, 1)]
    parsed = descriptor.parse(bits(*fields, *chains))
    assert parsed.structure.protected_by == (1, 2, 0, 2) and parsed.template.chain_fdiffs == (5, 6, 7)


def needed(table: descriptor.LayerTable, ids) -> list[int | None]:
    return [table.rows[i].needed_by if i in table.rows else None for i in ids]


def test_layer_table_has_the_rows_before_the_packet_that_needs_them():
    table = descriptor.LayerTable()
    assert table.layer(3) == (descriptor.EVERYBODY, 0)
    first = descriptor.parse(bytes.fromhex(AV1)).structure
    changes = table.see(first)
    assert changes == table.rows and needed(table, range(5)) == [7, 7, 6, 4, 4]
    assert needed(table, range(5, 11)) == [7, 7, 6, 4, 4, None]  # where the ids go next
    assert table.see(first) == {}
    changes = table.see(descriptor.parse(bytes.fromhex(AV1_MOVED)).structure)
    assert {i: layer.needed_by for i, layer in changes.items()} == {10: 7, 11: 7, 12: 6, 13: 4, 14: 4}
    assert needed(table, (3, 8)) == [4, 4]  # late packets of the old structure are judged as before
    third = descriptor.parse(bytes.fromhex(VP8)).structure
    assert third.offset == 0
    changes = table.see(third)
    assert changes[14] is None and 14 not in table.rows
    assert needed(table, range(14)) == [7, 7, 7, 6, 6, 4, 4, 6, 4, 4, 6, 6, 4, 4]  # in force, then late, then next


def test_where_a_receiver_moves_up():
    table = descriptor.LayerTable()
    table.see(descriptor.parse(bytes.fromhex(AV1)).structure)
    assert [table.rows[i].switches for i in range(5)] == [0b111, 0b111, 0b100, 0, 0]  # T0: to any; T1: to all layers
    table.see(descriptor.parse(bytes.fromhex(VP8)).structure)
    assert [table.rows[i].switches for i in range(7)] == [0b111, 0b111, 0b001, 0b110, 0b100, 0, 0]


def test_nested_targets():
    assert descriptor.nested(descriptor.parse(bytes.fromhex(AV1)).structure)
    assert descriptor.nested(descriptor.parse(bytes.fromhex(VP8)).structure)
    s2 = [(1, 1), (1, 1), (0, 6), (9, 16), (1, 1), (0, 4), (0, 6), (1, 5), (2, 2), (3, 2), (2, 2), (0, 2), (0, 2), (2, 2), (0, 1), (0, 1), (0, 2), (0, 1)]
    simulcast = descriptor.parse(bits(*s2)).structure
    assert simulcast.targets == ((0, 0), (1, 0)) and not descriptor.nested(simulcast)


@pytest.mark.parametrize("length", range(20))
def test_a_structure_cut_anywhere_is_an_error(length):
    with pytest.raises(MediaError):
        descriptor.parse(bytes.fromhex(AV1)[:length])


@given(st.binary(max_size=64), st.sampled_from([None, AV1, VP8, AV1_MOVED]))
@settings(max_examples=800, deadline=None)
def test_noise_raises_nothing_else(data, known):
    structure = descriptor.parse(bytes.fromhex(known)).structure if known else None
    for parse in (
        lambda: descriptor.parse(data, structure), lambda: payload.parse_vp8(data), lambda: payload.parse_vp9(data),
        lambda: payload.parse_frame_mark(data), lambda: list(rtp.elements(data, rtp.parse_header(data))),
    ):
        try:
            parse()
        except MediaError as error:
            assert str(error)


@given(st.binary(min_size=12, max_size=80), st.sampled_from([0xBEDE, 0x1000, 0x1007]))
@settings(max_examples=800, deadline=None)
def test_hostile_extensions_stay_inside(data, profile):
    body = data[12:]
    hostile = b"\x90" + data[1:12] + profile.to_bytes(2, "big") + (len(body) // 4).to_bytes(2, "big") + body
    header = rtp.parse_header(hostile)
    try:
        for element in rtp.elements(hostile, header):
            assert header.extension.start < element.data.start <= element.data.stop <= header.extension.stop
            assert 1 <= element.id <= 255
    except MediaError as error:
        assert "header extension" in str(error)


@given(st.binary(min_size=17, max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_structure_that_reads_is_whole(data):
    try:
        parsed = descriptor.parse(b"\xc0\x00\x01\x80" + data)
    except MediaError:
        return
    structure = parsed.structure
    assert 1 <= len(structure.templates) <= 64 and 1 <= len(structure.targets) <= 32
    for template in structure.templates:
        assert len(template.dtis) == len(structure.targets) and all(1 <= diff <= 16 for diff in template.fdiffs)
    assert all(0 <= chain < len(structure.templates[0].chain_fdiffs) for chain in structure.protected_by)
    table = descriptor.LayerTable()
    table.see(structure)
    for i, template in enumerate(structure.templates):
        layer = table.rows[(structure.offset + i) % 64]
        assert layer == (descriptor.needed_by(template), descriptor.switches(template)) and layer.switches & ~layer.needed_by == 0


# -- payload descriptors -------------------------------------------------------------------------------------------


def test_vp8():
    parsed = payload.parse_vp8(bytes.fromhex("90e0a1b2c3a0" + "9d012a"))
    assert parsed == (True, False, False, 0x21B2, 0xC3, 2, True, 6)
    assert payload.parse_vp8(bytes.fromhex("10" + "50")) == (True, True, False, None, None, None, False, 1)
    assert payload.parse_vp8(bytes.fromhex("808005" + "00")).picture_id == 5
    assert payload.parse_vp8(bytes.fromhex("a0103f" + "00")) == (False, False, True, None, None, None, False, 3)  # K only: no TID
    with pytest.raises(MediaError, match="VP8 payload descriptor is cut short at byte 2"):
        payload.parse_vp8(bytes.fromhex("8080"))


def test_vp9():
    assert payload.parse_vp9(bytes.fromhex("acb123" + "5407")) == (True, True, False, 0x3123, 2, 2, True, 7, 5)
    flexible = payload.parse_vp9(bytes.fromhex("fc05" + "42" + "0302"))
    assert (flexible.predicted, flexible.picture_id, flexible.temporal, flexible.spatial, flexible.tl0_picture, flexible.size) == (True, 5, 2, 1, None, 5)
    with_structure = payload.parse_vp9(bytes.fromhex("0a" + "38" + "0280016800b40140" + "02" + "00" + "0401" + "aa"))
    assert with_structure.size == 14  # two spatial layers' resolutions, two pictures, the second with one reference
    with pytest.raises(MediaError, match="more than 3"):
        payload.parse_vp9(bytes.fromhex("50030303"))


def test_frame_marking():
    assert payload.parse_frame_mark(bytes.fromhex("ca0107")) == (True, True, False, False, True, 2, 1, 7)
    assert payload.parse_frame_mark(bytes.fromhex("b0")) == (True, False, True, True, False, 0, None, None)
    with pytest.raises(MediaError, match="4 bytes"):
        payload.parse_frame_mark(bytes(4))


# -- what Chromium sent --------------------------------------------------------------------------------------------

needs_captures = pytest.mark.skipif(not captures.names(), reason="no captures beside the repository (../shared/captures)")


@needs_captures
@pytest.mark.parametrize("name", captures.names() or ["none"])
def test_captures(name):
    """Every RTP packet reads; template ids, layers and structures are those that another reader counted."""
    text = captures.summary(name)
    counted = {int(ssrc): (int(count), words) for ssrc, words, count in re.findall(r"ssrc=(\d+) pt=\d+ (\S+): (\d+) pkts", text)}
    streams: Counter[int] = Counter()
    ids: Counter[int] = Counter()
    frames: dict[int, tuple[int, tuple[int, int]]] = {}
    structures = []
    table, known = descriptor.LayerTable(), None
    for datagram in captures.datagrams(name):
        data = datagram.payload
        if data[0] >> 6 != 2 or rtp.is_rtcp(data):
            continue
        header = rtp.parse_header(data)
        streams[header.ssrc] += 1
        elements = {element.id: data[element.data] for element in rtp.elements(data, header)}
        codec = counted[header.ssrc][1]
        if codec in ("opus/48000/2", "rtx/90000"):
            continue
        raw = elements[captures.extension_id(name)]
        parsed = descriptor.parse(raw, known)
        template_id = parsed.mandatory.template_id
        assert descriptor.has_structure(raw) == (parsed.structure is not None)
        if parsed.structure is not None:
            if known is not None:  # the first packet of a new structure already finds its rows
                assert table.rows[template_id].needed_by == descriptor.needed_by(parsed.template)
            known = parsed.structure
            table.see(known)
            structures.append(raw.hex())
        assert table.layer(template_id) == (descriptor.needed_by(parsed.template), descriptor.switches(parsed.template))
        ids[template_id] += 1
        frames.setdefault(parsed.mandatory.frame_number, (template_id, (parsed.template.spatial, parsed.template.temporal)))
        if codec == "VP8/90000":
            # With a dependency descriptor Chromium leaves the temporal id out of the payload descriptor.
            assert payload.parse_vp8(data[header.payload]).temporal in (None, parsed.template.temporal)
        if codec == "VP9/90000":
            assert payload.parse_vp9(data[header.payload]).temporal == parsed.template.temporal
    assert {ssrc: count for ssrc, (count, _) in counted.items()} == dict(streams)
    by_id = re.search(r"per-template-id \(VP8: per TID\) pkts/bytes: (.*)", text)
    if by_id is None:
        assert name == "d_audio_only"
        return
    assert dict(ids) == {int(key): int(value) for key, value in re.findall(r"(\d+): (\d+)/\d+", by_id[1])}
    by_layer = re.search(r"frames per \(template id, \[S,T\]\): (.*)", text)
    assert Counter(frames.values()) == {
        (int(i), (int(s), int(t))): int(n) for i, s, t, n in re.findall(r"(\d+) \[(\d+), (\d+)\]: (\d+)", by_layer[1])
    }
    told = re.findall(r"DD structure at .* hex=([0-9a-f]+)", text)
    assert structures == told
