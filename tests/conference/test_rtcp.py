"""RTCP compounds: what Chromium sends, what is taken apart for whom, and hostile lengths."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.conference import rtcp
from shunt.conference.rtcp import Kind, Report, Route
from shunt.conference.rtp import MediaError
from tests.conference import captures

# From captures of Chromium, one of each combination.
TWCC = bytes.fromhex("afcd0009fa17fa17c9a3f4fc000100110151850020118909081a1815011001080c0908090c014e01")
RR_XR = bytes.fromhex("82c9000d0000000147f7fef000000000000036fc0000018f00000000000000004831c2ab0000000000000efb00000094000000000000000080cf00040000000104000002eeabffeb044f6dfc")
SR_SDES_XR = bytes.fromhex("80c800064831c2abeeabffeb0775c8d9c22b93f60000002000003ccc81ca00064831c2ab01103944304668477a31784d412b6a484664000080cf00054831c2ab0500000300000001ffeb044f000002fb")
RR_REMB_XR = bytes.fromhex(
    "82c9000d00000001b1c24039000000000000066c000000570000000000000000a325f7070000000000006439000000000000000000000000"
    "8fce0006000000010000000052454d42020f7017a325f707b1c24039" "80cf00040000000104000002eeabffd8510fa58f"
)
PLI_REMB = bytes.fromhex("81ce000200000001668419008fce0005000000010000000052454d4201120fd466841900")


def items(packet: bytes) -> list[rtcp.Item]:
    return list(rtcp.walk(packet))


@pytest.mark.parametrize(
    ("packet", "kinds"),
    [
        (TWCC, [Kind.TWCC]), (RR_XR, [Kind.RR, Kind.XR]), (SR_SDES_XR, [Kind.SR, Kind.SDES, Kind.XR]),
        (RR_REMB_XR, [Kind.RR, Kind.REMB, Kind.XR]), (PLI_REMB, [Kind.PLI, Kind.REMB]),
        (rtcp.build_nack(1, 2, [3]) + PLI_REMB[12:], [Kind.NACK, Kind.REMB]),
        (rtcp.build_fir(1, 2, 3), [Kind.FIR]), (bytes.fromhex("81cb000100000007"), [Kind.BYE]),
        (bytes.fromhex("84cc000200000001" + b"name".hex()), [Kind.APP]), (bytes.fromhex("80d00000"), [Kind.OTHER]),
    ],
)
def test_every_item_is_seen_wherever_it_is(packet, kinds):
    found = items(packet)
    assert [item.kind for item in found] == kinds
    assert b"".join(packet[item.where] for item in found) == packet
    union = Kind.NONE
    for kind in kinds:
        union |= kind
    assert rtcp.classify(packet) == union


def test_fields_of_what_chromium_sent():
    report, estimate, _ = items(RR_REMB_XR)
    assert rtcp.reports(RR_REMB_XR, report)[0] == Report(0xB1C24039, 0, 0, 0x66C, 0x57, 0, 0)
    assert rtcp.remb(RR_REMB_XR, estimate) == (1, 1802424, (0xA325F707, 0xB1C24039))
    sender = rtcp.sender_info(SR_SDES_XR, items(SR_SDES_XR)[0])
    assert sender == (0x4831C2AB, 0xEEABFFEB0775C8D9, 0xC22B93F6, 32, 15564)
    assert rtcp.requests(PLI_REMB, items(PLI_REMB)[0]) == [(1, 0x66841900, None)]


def test_a_negative_loss_count_and_a_fir_of_two():
    block = Report(5, 7, -3, 0x10001, 9, 1, 2)
    packet = rtcp.build_rr(1, [block])
    assert rtcp.reports(packet, items(packet)[0]) == [block]
    fir = bytes.fromhex("84ce0006" + "00000001" + "00000000" + "0000000a05000000" + "0000000b06000000")
    assert rtcp.requests(fir, items(fir)[0]) == [(1, 10, 5), (1, 11, 6)]


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=60))
@settings(deadline=None)
def test_nack_round_trip(numbers):
    packet = rtcp.build_nack(1, 2, numbers)
    assert set(rtcp.nack(packet, items(packet)[0]).lost) == set(numbers)
    ordered = sorted(set(numbers))
    packet = rtcp.build_nack(1, 2, ordered)
    assert rtcp.nack(packet, items(packet)[0]).lost == tuple(ordered)


@given(st.integers(0, (1 << 40) - 1), st.lists(st.integers(0, 2**32 - 1), max_size=5))
@settings(deadline=None)
def test_remb_round_trip(bitrate, ssrcs):
    packet = rtcp.build_remb(1, bitrate, ssrcs)
    found = rtcp.remb(packet, items(packet)[0])
    assert found.ssrcs == tuple(ssrcs) and bitrate - bitrate / 2**17 - 1 <= found.bitrate <= bitrate


def test_building_what_cannot_be():
    with pytest.raises(ValueError, match="without numbers"):
        rtcp.build_nack(1, 2, [])
    with pytest.raises(ValueError, match="-1 bit/s"):
        rtcp.build_remb(1, -1, [])


def test_requests_go_to_the_sender_they_name_and_nothing_else_does():
    routes = {0x100: Route("ann", 0xA), 0x200: Route("bob", 0xB)}
    compound = (
        RR_XR + rtcp.build_nack(1, 0x100, [10, 11, 40]) + rtcp.build_pli(1, 0x200) + rtcp.build_fir(1, 0x100, 9) + PLI_REMB[12:] + rtcp.build_pli(1, 0x300)
    )
    out = rtcp.to_senders(compound, routes, 0x5)
    assert set(out) == {"ann", "bob"}
    assert [item.kind for item in items(out["ann"])] == [Kind.NACK, Kind.FIR]
    assert rtcp.nack(out["ann"], items(out["ann"])[0]) == (5, 0xA, (10, 11, 40))
    assert rtcp.requests(out["ann"], items(out["ann"])[1]) == [(5, 0xA, 9)]
    assert out["bob"] == rtcp.build_pli(5, 0xB)


def test_a_nack_of_an_adapted_receiver_asks_in_the_senders_numbers():
    routes = {0x100: Route("ann", 0xA)}
    original = {20: 25, 21: None, 22: 29}.get
    out = rtcp.to_senders(rtcp.build_nack(1, 0x100, [20, 21, 22]), routes, 5, lambda ssrc, number: original(number))
    assert rtcp.nack(out["ann"], items(out["ann"])[0]).lost == (25, 29)
    assert rtcp.to_senders(rtcp.build_nack(1, 0x100, [21]), routes, 5, lambda ssrc, number: original(number)) == {}


def test_every_ssrc_is_rewritten_wherever_it_stands():
    everywhere = (
        bytes.fromhex("81c8000c" + "00000001" + "00" * 20 + "00000001" + "00" * 20)
        + bytes.fromhex("82ca0005" + "00000001" + "01026162" + "00000000" + "00000001" + "00000000")
        + bytes.fromhex("80cf0005" + "00000001" + "05000003" + "00000001" + "0000000100000001")
        + rtcp.build_nack(1, 1, [1]) + rtcp.build_pli(1, 1) + rtcp.build_fir(1, 1, 1) + rtcp.build_remb(1, 1000, [1, 7, 1]) + bytes.fromhex("82cb00020000000100000007")
    )
    rewritten = rtcp.rewrite_ssrcs(everywhere, {1: 0xC0FFEE})
    assert len(rewritten) == len(everywhere)
    kinds = [item.kind for item in items(rewritten)]
    assert kinds == [Kind.SR, Kind.SDES, Kind.XR, Kind.NACK, Kind.PLI, Kind.FIR, Kind.REMB, Kind.BYE]
    assert rewritten.count(bytes.fromhex("00c0ffee")) == 2 + 2 + 2 + 2 + 2 + 2 + 3 + 1
    nack = rtcp.nack(rewritten, items(rewritten)[3])
    assert nack == (0xC0FFEE, 0xC0FFEE, (1,))  # the number 1 is no SSRC
    assert rewritten[-12:] == bytes.fromhex("82cb000200c0ffee00000007")
    assert rtcp.rewrite_ssrcs(rewritten, {0xC0FFEE: 1}) == everywhere


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        ("80c9", "2 bytes: 4"), ("80c90001", "goes to byte 8 of 4"), ("40c90000", "version 1"), ("81c9000100000001", "RR at byte 0: 8 bytes, 32"),
        ("80c9000100000001" + "80", "header at byte 8 is cut"), ("8080000000", "type 128"), ("81ce000100000001", "PLI at byte 0: 8 bytes"),
        ("81cd0002" + "00" * 8, "NACK at byte 0: 12 bytes, 16"), ("a0c9000100000009", "padding"), ("a0c9000100000000", "padding"),
        ("a0c9000100000004" + "80c9000100000001", "padding"), ("83cb000100000001", "BYE at byte 0: 8 bytes, 16"),
        ("a1cd0003" + "00" * 11 + "04", "NACK at byte 0: 12 bytes, 16"),
    ],
)
def test_hostile_lengths_are_named(packet, words):
    with pytest.raises(MediaError, match=words):
        rtcp.classify(bytes.fromhex(packet))


def test_counts_that_lie():
    lying = bytearray(rtcp.build_remb(1, 1000, [1]))
    lying[16] = 200
    with pytest.raises(MediaError, match="names 200 streams in 24 bytes"):
        rtcp.rewrite_ssrcs(bytes(lying), {})
    with pytest.raises(MediaError, match="SDES item at byte 8 goes beyond"):
        rtcp.rewrite_ssrcs(bytes.fromhex("81ca0002" + "00000001" + "01ff6162"), {})
    with pytest.raises(MediaError, match="XR block at byte 8 goes to byte 24 of 12"):
        rtcp.rewrite_ssrcs(bytes.fromhex("80cf0002" + "00000001" + "05000003"), {})


def read_everything(packet: bytes) -> None:
    for item in rtcp.walk(packet):
        rtcp.media_ssrcs(packet, item)
        if item.kind is Kind.SR:
            rtcp.sender_info(packet, item)
        if item.kind is Kind.NACK:
            rtcp.nack(packet, item)
        if item.kind is Kind.BYE:
            rtcp.byes(packet, item)
    rtcp.to_senders(packet, {1: Route("x", 2)}, 3)
    assert len(rtcp.rewrite_ssrcs(packet, {1: 2})) == len(packet)


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_noise_raises_nothing_else(data):
    base = bytearray(data.draw(st.sampled_from([TWCC, RR_XR, SR_SDES_XR, RR_REMB_XR, PLI_REMB, rtcp.build_fir(1, 1, 1) + rtcp.build_nack(1, 1, [1])])))
    for _ in range(data.draw(st.integers(0, 4))):
        base[data.draw(st.integers(0, len(base) - 1))] = data.draw(st.integers(0, 255))
    packet = bytes(base[: data.draw(st.integers(0, len(base)))]) if data.draw(st.booleans()) else bytes(base) + data.draw(st.binary(max_size=12))
    try:
        read_everything(packet)
    except MediaError as error:
        assert str(error)


@given(st.binary(max_size=100))
@settings(max_examples=500, deadline=None)
def test_pure_noise(data):
    try:
        read_everything(data)
    except MediaError as error:
        assert str(error)


@pytest.mark.skipif(not captures.names(), reason="no captures beside the repository (../shared/captures)")
@pytest.mark.parametrize("name", captures.names() or ["none"])
def test_captures(name):
    """The compounds of each capture are those that another reader counted, and so are the estimates."""
    text = captures.summary(name)
    compounds: Counter[str] = Counter()
    estimates = []
    for datagram in captures.datagrams(name):
        packet = datagram.payload
        if not (packet[0] >> 6 == 2 and 192 <= packet[1] <= 223):
            continue
        read_everything(packet)
        compounds["+".join(item.kind.name for item in items(packet))] += 1
        estimates += [rtcp.remb(packet, item).bitrate for item in items(packet) if item.kind is Kind.REMB]
    told: Counter[str] = Counter()
    for count, words in re.findall(r"^ +(\d+) \S+>\S+ (\S+)$", text.split("## RTCP compounds")[1].split("##")[0], re.MULTILINE):
        told[re.sub(r"[\[(][^\])]*[\])]", "", words)] += int(count)
    assert compounds == told
    first = [int(value) for value in re.findall(r"\d+\.\d\d:(\d+) \[", text)]
    assert estimates[: len(first)] == first
