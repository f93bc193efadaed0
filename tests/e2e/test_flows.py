"""Every call flow through the whole: legs and ports, states, media both ways, nothing lost, nothing left."""

from __future__ import annotations

import socket
import struct
import threading
import time
from datetime import datetime

import pytest

from tests.e2e.calls import MEDIA, Lab, Outcome, await_clean, place
from tests.lab.capture import Capture, account
from tests.lab.processes import open_socket
from tests.lab.sipp import Sipp, address, register
from tests.lab.topology import EDGE_IP, NAT_IP, NAT_IP6

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# name: (caller scenario, callee scenario, options of place(), how it ends, media lines)
FLOWS = {
    "caller-bye": ("uac_call", "uas_answer", {}, "BYE by caller", 1),
    "callee-bye": ("uac_callee_bye", "uas_bye", {}, "BYE by callee", 1),
    "early-media": ("uac_early_media", "uas_early_media", {}, "BYE by caller", 1),
    "cancel": ("uac_cancel", "uas_cancelled", {}, "CANCEL", 1),
    "late-offer": ("uac_late_offer", "uas_answer", {}, "BYE by caller", 1),
    "reinvite-by-caller": ("uac_reinvite", "uas_answer", {}, "BYE by caller", 1),
    "reinvite-by-callee": ("uac_reinvited", "uas_reinvite", {}, "BYE by caller", 1),
    "port-change": ("uac_reinvite_port", "uas_answer", {}, "BYE by caller", 1),
    "hold-sendonly": ("uac_hold", "uas_answer", {}, "BYE by caller", 1),
    "hold-zero": ("uac_hold_zero", "uas_answer", {}, "BYE by caller", 1),
    "audio-and-video": ("uac_av", "uas_av", {}, "BYE by caller", 2),
    "video-switched-off": ("uac_video_off", "uas_av", {}, "BYE by caller", 2),
    "nat-caller": ("uac_call", "uas_answer", {"host": "natcaller"}, "BYE by caller", 1),
    "nat-callee-bye": ("uac_callee_bye", "uas_bye", {"host": "natcaller"}, "BYE by callee", 1),
    "nat-reinvite": ("uac_reinvite", "uas_answer", {"host": "natcaller"}, "BYE by caller", 1),
    "nat-cancel": ("uac_cancel", "uas_cancelled", {"host": "natcaller"}, "CANCEL", 1),
    "trunk": ("uac_call", "uas_answer", {"trunk": True}, "BYE by caller", 1),
    "ipv6": ("uac_call", "uas_answer", {"caller_version": 6, "callee_version": 6}, "BYE by caller", 1),
    "ipv4-to-ipv6": ("uac_call", "uas_answer", {"caller_version": 4, "callee_version": 6}, "BYE by caller", 1),
    "ipv6-to-ipv4": ("uac_call", "uas_answer", {"caller_version": 6, "callee_version": 4}, "BYE by caller", 1),
    "ipv6-reinvite-by-callee": ("uac_reinvited", "uas_reinvite", {"caller_version": 6, "callee_version": 4}, "BYE by caller", 1),
}


@pytest.mark.parametrize("name", FLOWS)
def test_flow(lab: Lab, name: str) -> None:
    caller, callee, options, how, lines = FLOWS[name]
    outcome = place(lab, caller, callee, **options)
    assert outcome.call.how == how
    _assert_media(outcome, lines)
    view = outcome.last_up
    # A call switched over to one line keeps the other one's session until it ends: only the first is looked at.
    for index in range(1 if name == "video-switched-off" else lines):
        _assert_legs(outcome, view, index, options.get("host", "caller"), options.get("caller_version", 4), options.get("callee_version", 4))
    assert all(s["offloaded_after_ms"] is not None for s in outcome.streams(view))
    await_clean(lab)


def test_busy_leaves_nothing(lab: Lab) -> None:
    outcome = place(lab, "uac_busy", "uas_busy")
    assert outcome.call.how == "486"
    assert outcome.packets.sent == 0
    await_clean(lab)


def test_reinvite_takes_entries_out_before_it_takes_effect(lab: Lab) -> None:
    """The old port's entries must not outlive the new SDP: the states go offloaded, not offloaded, offloaded."""
    outcome = place(lab, "uac_reinvite_port", "uas_answer", talk_ms=4000)
    _assert_media(outcome, 1)
    states = outcome.states()
    assert len(states) == 2, states
    for stream, found in states.items():
        suspended = found.index("suspended")
        assert "offloaded" in found[:suspended] and "offloaded" in found[suspended:], (stream, found)
    ports = {leg["learned"].rpartition(":")[2] for leg in outcome.last_up["media"][0]["legs"].values()}
    assert str(MEDIA["caller"] + 2) in ports, f"the new port is not the learned one: {ports}"
    await_clean(lab)


def test_forked_call_follows_the_branch_that_answers(lab: Lab) -> None:
    """Two contacts: one sends early media, the other answers. The media must end up with the latter."""
    for port in (5075, 5076):
        register(lab.topology, lab.work, "callee", "forked", port)
    captures = [Capture(lab.topology, lab.work, name, full=True).start() for name in ("caller", "callee")]
    common = {"calls": 1, "talk_ms": 1500}
    loser = Sipp(lab.topology, lab.work, "callee", "uas_cancelled", sip_port=5075, media_port=7400, **common).start()
    winner = Sipp(lab.topology, lab.work, "callee", "uas_answer", sip_port=5076, media_port=7000, **common).start()
    caller = Sipp(lab.topology, lab.work, "caller", "uac_call", sip_port=5080, media_port=6000, user="forked", **common).start()
    views = []
    try:
        while caller.process.alive:
            views += [view for view in lab.edge.calls() if not view["ended"]]
            time.sleep(0.05)
        for sipp in (caller, winner, loser):
            sipp.finish()
    finally:
        for sipp in (caller, winner, loser):
            sipp.stop()
        for capture in captures:
            capture.stop()
    calls, packets = account(captures)
    (call,) = calls.values()
    view = Outcome(call, packets, views, 0.0).last_up
    assert {leg["learned"] for leg in view["media"][0]["legs"].values()} == {f"{address('caller')}:6000", f"{address('callee')}:7000"}
    to_callee = next(d for d in packets.directions if d.sender == "caller")
    assert to_callee.sent > 10 and to_callee.received == to_callee.sent
    # The CANCEL of the branch that lost is not the end of the call.
    assert to_callee.offloaded >= 0.5 * to_callee.sent, to_callee
    await_clean(lab)


def test_answers_are_answers_to_the_relay(lab: Lab) -> None:
    """An SDP that answers an offer reaches the relay as an answer, whether it comes in a reply or, after a late offer, in the ACK."""
    verbs = _verbs(lab)
    for caller in ("uac_call", "uac_late_offer"):
        outcome = place(lab, caller, "uas_answer")
        commands = [event["what"] for event in outcome.history if event["kind"] == "control" and event["what"] in verbs]
        assert commands == verbs, (caller, commands)
        await_clean(lab)


def test_call_answered_twice_goes_on_when_one_answer_is_hung_up(lab: Lab) -> None:
    """Two phones answer a forked call. The caller keeps the first and hangs up the second: not a packet of the first is lost by that."""
    for port in (5077, 5078):
        register(lab.topology, lab.work, "callee", "twice", port)
    captures = [Capture(lab.topology, lab.work, name, full=True).start() for name in ("caller", "callee")]
    common = {"calls": 1, "talk_ms": 2500}
    late = Sipp(lab.topology, lab.work, "callee", "uas_late_answer", sip_port=5077, media_port=7400, **common).start()
    first = Sipp(lab.topology, lab.work, "callee", "uas_answer", sip_port=5078, media_port=7000, **common).start()
    caller = Sipp(lab.topology, lab.work, "caller", "uac_two_answers", sip_port=5080, media_port=6000, user="twice", **common).start()
    try:
        for sipp in (caller, first, late):
            sipp.finish()
    finally:
        for sipp in (caller, first, late):
            sipp.stop()
        for capture in captures:
            capture.stop()
    byes = [message for message in captures[0].messages() if message.out and message.method == "BYE"]
    begin, end = byes[0].time, byes[-1].time
    assert end - begin > 2.0, "the caller did not hang up one answer and then the other"
    for sender, receiver, port in ((captures[0], captures[1], 7000), (captures[1], captures[0], 6000)):
        media, heard = sender.media(), receiver.media()
        sent = media[media["out"] & (media["relay_port"] % 2 == 0) & (media["time"] > begin) & (media["time"] < end - 0.1)]
        got = heard[~heard["out"] & (heard["own_port"] == port)]
        lost = {(row["ssrc"], row["seq"]) for row in sent} - {(row["ssrc"], row["seq"]) for row in got}
        assert len(sent) > 80, f"{sender.host} sent {len(sent)} packets"
        assert not lost, f"{len(lost)} of {len(sent)} packets of {sender.host} were lost after the second answer was hung up"
    commands = [event["what"] for event in lab.edge.history(byes[0].call_id) if event["kind"] == "control"]
    _, answer, delete = _verbs(lab)
    # rtpengine has a branch for each phone; Kamailio deletes that of the second one alone.
    branches = 2 if (lab.edge.relay_name, lab.edge.sip_server_name) == ("rtpengine", "kamailio") else 1
    assert commands.count(answer) == 1 and commands.count(delete) == branches, commands
    await_clean(lab)


def test_no_packet_is_forwarded_after_bye(lab: Lab) -> None:
    """A callee that ignores the hang-up and talks on is cut off by the data plane, not by its own good will, and no later than the BYE is answered.

    The last packets may have to wait for a processor: of three calls one is in time.
    """
    times: list[tuple[float, float]] = []
    while not times or (times[-1][0] > times[-1][1] and len(times) < 3):
        times.append(_talked_on_for_ms(lab))
        await_clean(lab)
    assert times[-1][0] <= times[-1][1], f"after the BYE left the caller packets were forwarded, and its answer came, for and after (in ms): {times}"


def _talked_on_for_ms(lab: Lab) -> tuple[float, float]:
    """A call; until when after its BYE the callee was heard by the caller, and twice the time until the BYE was answered, but 50 ms at least."""
    lab.register("bob4", 5071)
    captures = [Capture(lab.topology, lab.work, name, full=True).start() for name in ("caller", "callee")]
    callee = Sipp(lab.topology, lab.work, "callee", "uas_answer", sip_port=5071, media_port=7000, calls=1, talk_ms=1000).start()
    caller = Sipp(lab.topology, lab.work, "caller", "uac_call", sip_port=5080, media_port=6000, user="bob4", calls=1, talk_ms=1000).start()
    # A raw socket, because SIPp has bound the port; nothing is read from it.
    talker = open_socket(lab.topology, "callee", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    sent = 0
    try:
        relay = None
        deadline = time.monotonic() + 60
        while relay is None:
            assert time.monotonic() < deadline, "the call was never offloaded"
            relay = _callee_relay_address(lab)
            time.sleep(0.02)
        ended: float | None = None
        while ended is None or time.monotonic() < ended + 0.5:
            rtp = struct.pack("!BBHII", 0x80, 13, sent & 0xFFFF, sent, 0xBADBAD)
            talker.sendto(struct.pack("!HHHH", 7000, relay[1], 8 + len(rtp), 0) + rtp, (relay[0], 0))
            sent += 1
            time.sleep(0.002)
            if ended is None and not caller.process.alive:
                ended = time.monotonic()
            assert time.monotonic() < deadline, "the call did not end"
        caller.finish()
        callee.finish()
    finally:
        talker.close()
        caller.stop()
        callee.stop()
        for capture in captures:
            capture.stop()
    calls, _ = account(captures)
    (call,) = calls.values()
    assert call.ended is not None
    heard = captures[0].media()
    heard = heard[~heard["out"] & (heard["ssrc"] == 0xBADBAD)]
    assert len(heard) > 50, "the talker was not heard during the call"
    answered = next(message.time for message in captures[0].messages() if not message.out and message.cseq.endswith("BYE") and message.start.startswith("SIP/2.0 200"))
    return float((heard["time"].max() - call.ended) * 1000), max(50.0, 2 * (answered - call.ended) * 1000)


def test_spraying_the_port_range_gets_nothing_and_stops_nothing(lab: Lab) -> None:
    """RTP Bleed and RTP Inject: another host, which has been found to scan, sends RTP to every relay port through the whole call."""
    stop = threading.Event()
    blocked = lab.edge.status()["limits"]["scanners_blocked"]
    attacker = open_socket(lab.topology, "nat", socket.AF_INET, socket.SOCK_DGRAM)
    attacker.bind((NAT_IP, 4444))
    attacker.settimeout(0.2)
    stolen: list[bytes] = []

    def spray() -> None:
        seq = 0
        while not stop.is_set():
            packet = struct.pack("!BBHII", 0x80, 0, seq & 0xFFFF, seq * 160, 0xEB111EED) + bytes(160)
            for port in range(35000, 65000, 2):
                if stop.is_set():
                    return
                attacker.sendto(packet, (EDGE_IP, port))
                if port % 500 == 0:
                    time.sleep(0.005)
            seq += 1

    def listen() -> None:
        while not stop.is_set():
            try:
                stolen.append(attacker.recv(2048))
            except (TimeoutError, ConnectionError):
                continue

    threads = [threading.Thread(target=spray), threading.Thread(target=listen)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        while lab.edge.status()["limits"]["scanners_blocked"] <= blocked:
            assert time.monotonic() < deadline, "the scan was not noticed"
            time.sleep(0.05)
        outcome = place(lab, "uac_call", "uas_answer", talk_ms=2500)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        attacker.close()
    assert stolen == []
    _assert_media(outcome, 1)
    assert outcome.last_up
    await_clean(lab)


def _verbs(lab: Lab) -> list[str]:
    """The relay's commands for an offer, an answer and a hang-up."""
    return ["offer", "answer", "delete"] if lab.edge.relay_name == "rtpengine" else ["U", "L", "D"]


def _assert_media(outcome: Outcome, lines: int) -> None:
    packets = outcome.packets
    assert len(packets.directions) == 2 * lines, f"media did not flow both ways on every line: {packets.directions}"
    assert packets.lost == 0, f"lost packets: {[d for d in packets.directions + packets.rtcp if d.received < d.sent]}"
    assert packets.duplicates == 0
    assert packets.bad_checksums == 0
    assert all(d.offloaded > 0 for d in packets.directions), f"a stream never left the relay: {packets.directions}"


def _assert_legs(outcome: Outcome, view: dict, index: int, host: str, caller_version: int, callee_version: int) -> None:
    """Each leg's learned address is the phone's, and it sends to the relay port that its own SDP gave it last before the view, or later."""
    at = datetime.fromisoformat(view["created"]).timestamp() + view["age_s"]
    public = {4: NAT_IP, 6: NAT_IP6}[caller_version] if host == "natcaller" else address(host, caller_version)
    phones = {public: host, address("callee", callee_version): "callee"}
    found = set()
    for leg in view["media"][index]["legs"].values():
        ip, _, port = leg["learned"].rpartition(":")
        phone = phones[ip.strip("[]")]
        found.add(phone)
        ports = outcome.call.relay_ports[phone][index]
        old = sum(outcome.call.told[phone, port] <= at for port in ports)
        assert int(leg["relay_address"].rpartition(":")[2]) in ports[max(old - 1, 0) :], (leg, ports)
        if phone != "natcaller":
            assert int(port) - MEDIA[phone] in (0, 2), f"{phone} was learned at port {port}"
    assert found == {host, "callee"}


def _callee_relay_address(lab: Lab) -> tuple[str, int] | None:
    """Where the callee sends to, once everything is offloaded."""
    for view in lab.edge.calls():
        streams = [s for line in view["media"] for s in line["streams"] if s["component"] == "rtp"]
        if view["ended"] or not streams or any(s["state"] != "offloaded" for s in streams):
            continue
        for leg in view["media"][0]["legs"].values():
            if leg["learned"] == f"{address('callee')}:7000":
                ip, _, port = leg["relay_address"].rpartition(":")
                return ip, int(port)
    return None
