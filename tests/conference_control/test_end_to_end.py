"""Conferences with real processes: RTP over real sockets, one participant behind a NAT, every packet accounted for."""

from __future__ import annotations

import json
import re
import shlex
import struct
import time

import pytest

from tests.conference_control.lab import Bridge, Party, Phone, await_that, come_to_rest, sip_server, unbroken
from tests.conference_control.room import NEEDS, OWN_SSRC, accounted, enter, need, three
from tests.conference_control.stun import Credentials, request
from tests.lab.processes import ROOT
from tests.lab.topology import EDGE_IP, LabError
from tests.tools.conference.rtcp import Kind, Report, build_fir, build_pli, build_remb, build_rr, remb, reports, walk

pytestmark = NEEDS


def test_three_hear_each_other_once(room: Bridge) -> None:
    parties = three(room)
    assert await_that(lambda: all(len(one.received(other)) > 80 for one in parties for other in parties if one is not other))
    accounted(parties)
    # Copies come from the address that the receiver sends to: a NAT lets nothing else in.
    assert all(one.sources == {one.relay} for one in parties)
    pairs = {(other.name, one.name) for one in parties for other in parties if one is not other}

    def all_counted() -> bool:
        # Copies are read once a second at most.
        copied = {(flow["sender"], flow["receiver"]): flow["packets"] or 0 for flow in room.conference()["flows"]}
        return set(copied) == pairs and min(copied.values()) > 80

    assert await_that(all_counted), room.conference()["flows"]
    look = room.conference()
    natted = next(one for one in look["participants"] if one["name"] == "cem")
    assert natted["media"][0]["source"].startswith("198.18.3.2:"), "the NAT's address was learned"


def test_dial_in(room: Bridge) -> None:
    """Two call in through SIP, one is let in by the API; a BYE leaves, and who is put out gets a BYE."""
    cem = enter(room, "natcaller", "cem")
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    for phone in phones:
        phone.call("room")
    ann, bob = (phone.party for phone in phones)
    room.await_design("NRA")
    for one in (ann, bob, cem):
        one.await_packets(*(other for other in (ann, bob, cem) if other is not one))
    # On hold and back: the relay address stays, and so does the media of the others; who is on hold gets no copies.
    first = ann.relay
    for direction, mirrored, method in (("inactive", "inactive", "INVITE"), ("sendonly", "recvonly", "UPDATE"), ("sendrecv", "sendrecv", "UPDATE")):
        assert phones[0].call("room", f"m=audio {{port}} RTP/AVP 0\r\na={direction}\r\n", method=method) == 200
        assert f"a={mirrored}\r\n" in phones[0].answer and ann.relay == first
        if mirrored != "sendrecv":
            assert come_to_rest(lambda: (len(ann.received(bob)), len(ann.received(cem)))), f"{direction}: no copies to ann"
            assert "ann" not in {flow["receiver"] for flow in room.conference()["flows"]}
    bob.await_packets(ann)
    ann.await_packets(bob, cem)
    # As phones did it before there were directions: no address. Who says so is heard on, and goes on from where it was.
    assert phones[0].call("room", address="0.0.0.0") == 200 and ann.relay == first
    assert come_to_rest(lambda: (len(ann.received(bob)), len(ann.received(cem)))), "no address: no copies to ann"
    assert next(one for one in room.conference()["participants"] if one["name"] == "ann")["media"][0]["direction"] == "inactive"
    assert phones[0].call("room") == 200 and ann.relay == first
    ann.await_packets(bob, cem)
    assert phones[0].bye() == 200
    room.await_design("two-party")
    bob.await_packets(cem)
    accounted([bob, cem])
    assert unbroken(bob.received(ann)) and unbroken(cem.received(ann))
    assert Phone(room, "caller", "eve").call("room", "m=audio {port} RTP/AVP 96\r\na=rtpmap:96 opus/48000/2\r\n") == 488, "bob's codec holds"
    room.leave(bob)
    assert phones[1].receive().startswith("BYE sip:bob@")
    srtp = Phone(room, "caller", "fay")
    assert srtp.call("room", "m=audio {port} RTP/SAVP 0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:xxxx\r\n") == 488
    assert 'Warning: 399 198.18.0.1 "RTP/SAVP: each call has SRTP keys of its own' in srtp.answer
    assert Phone(room, "caller", "dan").call("elsewhere") == 404


@pytest.mark.parametrize("name", ["kamailio", "opensips"])
def test_dial_in_through_a_sip_server(room: Bridge, name: str) -> None:
    need(name)
    room.move_focus("127.0.0.1")
    server = sip_server(room, name)
    try:
        phones = [Phone(room, host, name, 5060) for host, name in (("caller", "ann"), ("callee", "bob"))]
        for phone in phones:
            assert phone.call("room") == 200
        ann, bob = (phone.party for phone in phones)
        room.await_design("two-party")
        ann.await_packets(bob)
        bob.await_packets(ann)
        cem = enter(room, "natcaller", "cem")
        room.await_design("NRA")
        ann.await_packets(cem)
        cem.await_packets(ann, bob)
        relay = ann.relay
        assert [phones[0].call("room", f"m=audio {{port}} RTP/AVP 0\r\na={direction}\r\n") for direction in ("sendonly", "sendrecv")] == [200, 200]
        assert ann.relay == relay, "no relay comes between in a re-INVITE either"
        assert phones[0].bye() == 200
        room.await_design("two-party")
        bob.await_packets(cem)
        accounted([bob, cem])
        assert unbroken(bob.received(ann))
        room.leave(bob)
        assert phones[1].receive().startswith("BYE sip:bob@"), "the server passes the focus's BYE on"
    finally:
        server.stop()
        room.move_focus(EDGE_IP)


def test_a_call_outlives_the_agent(room: Bridge) -> None:
    """The dialogs go on where they were: hold, resume, a BYE of either side."""
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    for phone in phones:
        assert phone.call("room") == 200
    room.await_design("two-party")
    room.agent.kill()
    room.start_agent()
    room.await_ready()
    ann, bob = (phone.party for phone in phones)
    ann.await_packets(bob)
    relay = ann.relay
    assert phones[0].call("room", "m=audio {port} RTP/AVP 0\r\na=inactive\r\n") == 200 and "a=inactive\r\n" in phones[0].answer
    assert next(one for one in room.conference()["participants"] if one["name"] == "ann")["media"][0]["direction"] == "inactive"
    assert phones[0].call("room") == 200 and ann.relay == relay, "the relay address stays, and nobody joins a second time"
    assert [one["name"] for one in room.conference()["participants"]] == ["ann", "bob"]
    ann.await_packets(bob)
    bob.await_packets(ann)
    room.agent.kill()
    room.start_agent()
    room.await_ready()
    assert phones[0].bye() == 200
    room.leave(bob)
    assert phones[1].receive().startswith("BYE sip:bob@"), "who is put out gets a BYE, whoever answered the call"
    assert room.conference()["participants"] == []
    ann.hush()
    assert unbroken(bob.received(ann))


def test_calls_without_an_offer(room: Bridge) -> None:
    """The offer is in the 200, the answer in the ACK; also in a running call, which keeps its relay address."""
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    cem = enter(room, "natcaller", "cem")
    assert phones[1].call("room") == 200 and phones[0].call_without_offer("room") == 200
    assert "RTP/AVP 0\r\n" in phones[0].answer, "bob's codec holds"
    ann, bob = (phone.party for phone in phones)
    room.await_design("NRA")
    for one in (ann, bob, cem):
        one.await_packets(*(other for other in (ann, bob, cem) if other is not one))
    relay = ann.relay
    for media in ("m=audio {port} RTP/AVP 0\r\na=inactive\r\n", "m=audio {port} RTP/AVP 0\r\n"):
        assert phones[0].call_without_offer("room", media) == 200 and ann.relay == relay
        wanted = "inactive" if "inactive" in media else "sendrecv"
        assert await_that(lambda: next(one for one in room.conference()["participants"] if one["name"] == "ann")["media"][0]["direction"] == wanted), wanted
    ann.await_packets(bob, cem)
    assert phones[1].call_without_offer("room", "") == 200, "an ACK without an answer leaves a running call as it was"
    bob.await_packets(ann, cem)
    assert phones[0].bye() == 200
    # A call that begins with an answer that cannot be used, or with none, ends.
    for media in ("m=audio {port} RTP/AVP 96\r\na=rtpmap:96 opus/48000/2\r\n", ""):
        eve = Phone(room, "caller", "eve")
        assert eve.call_without_offer("room", media) == 200
        bye = eve.receive()
        assert bye.startswith("BYE sip:eve@")
        eve.accept(bye)
    assert await_that(lambda: {one["name"] for one in room.conference()["participants"]} == {"bob", "cem"}), "eve has left"
    assert phones[1].bye() == 200


def test_a_request_that_comes_again_is_answered_again(room: Bridge) -> None:
    """An INVITE, a re-INVITE and a BYE whose answers were lost: the same answers, and nothing is done twice."""
    phone = Phone(room, "caller", "ann")
    for _ in range(2):
        assert phone.call("room") == 200
        answer = phone.answer
        assert phone.repeat("INVITE") == answer
        assert [one["name"] for one in room.conference()["participants"]] == ["ann"]
    assert phone.bye() == 200
    assert phone.repeat("BYE").startswith("SIP/2.0 200") and room.conference()["participants"] == []


def test_a_description_for_each_remote_stream(room: Bridge) -> None:
    """A caller with room for two streams gets one sender in each; RTCP about each goes to the sender of that one."""
    bob, cem = enter(room, "callee", "bob"), enter(room, "natcaller", "cem")
    room.await_design("two-party")
    ann = Phone(room, "caller", "ann")
    second = room.party("caller", "ann's second")
    port = second.socket.getsockname()[1]
    assert ann.call("room", f"m=audio {{port}} RTP/AVP 0\r\na=rtcp-mux\r\nm=audio {port} RTP/AVP 0\r\na=recvonly\r\na=rtcp-mux\r\n") == 200
    ports = [int(number) for number in re.findall(r"m=audio (\d+)", ann.answer)]
    assert len(ports) == 2 and ann.answer.count("a=sendonly\r\n") == 1
    room.await_design("NRA")
    bob.await_packets(ann.party)
    ann.party.await_packets(bob)
    second.await_packets(cem)
    assert second.sources == {("198.18.0.1", ports[1])} and not second.received(bob)
    assert come_to_rest(lambda: len(ann.party.received(cem))), "cem comes in the second alone"
    second.relay = "198.18.0.1", ports[1]
    taken = room.metric("rtcp_taken")
    for one in (bob, cem):
        one.send_rtcp(build_rr(one.ssrc))
    assert await_that(lambda: room.metric("rtcp_taken") >= taken + 2)  # the agent knows from then on where RTCP goes
    ann.party.send_rtcp(build_rr(1) + build_pli(1, bob.ssrc) + build_pli(1, cem.ssrc))
    second.send_rtcp(build_rr(1) + build_pli(1, bob.ssrc) + build_pli(1, cem.ssrc))
    await_that(lambda: bool(bob.rtcp and cem.rtcp))
    assert bob.rtcp == [build_pli(1, bob.ssrc)] and cem.rtcp == [build_pli(1, cem.ssrc)]
    cem.send_rtcp(struct.pack("!BBHIQIII", 0x80, 200, 6, cem.ssrc, 1, 2, 3, 4))
    await_that(lambda: bool(second.rtcp))
    assert [data[:2] for data in second.rtcp] == [b"\x80\xc8"] and not ann.party.rtcp
    for direction, wanted in (("inactive", 0), ("recvonly", 1)):  # the descriptions are the same ones, whatever their direction
        assert ann.call("room", f"m=audio {{port}} RTP/AVP 0\r\na=rtcp-mux\r\nm=audio {port} RTP/AVP 0\r\na={direction}\r\na=rtcp-mux\r\n") == 200
        assert [int(number) for number in re.findall(r"m=audio (\d+)", ann.answer)] == ports and ann.answer.count("a=sendonly\r\n") == wanted
    second.await_packets(cem)
    assert ann.bye() == 200
    accounted([bob, cem])


def test_pictures_are_added_to_a_call_and_taken_away(room: Bridge) -> None:
    """A re-INVITE with one description more: it is answered with an address of its own, which stays over what follows; sound goes on."""
    bob, cem = enter(room, "callee", "bob", media="audio,video"), enter(room, "natcaller", "cem", media="audio,video")
    cameras = {name: room.party(host, f"{name}'s camera") for host, name in (("callee", "bob"), ("natcaller", "cem"), ("caller", "ann"))}
    for one in room.conference()["participants"]:
        cameras[one["name"]].talk(one["media"][1]["relay"])
    ann = Phone(room, "caller", "ann")
    port = cameras["ann"].socket.getsockname()[1]
    sound, pictures = "m=audio {port} RTP/AVP 0\r\n", f"m=video {port} RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\n"
    assert ann.call("room", sound) == 200
    room.await_design("NRA")
    ann.party.await_packets(bob, cem)
    bob.await_packets(ann.party)
    first = ann.party.relay

    def offered(media: str) -> int:
        """The port that pictures are answered with."""
        assert ann.call("room", media) == 200 and ann.party.relay == first
        return int(re.search(r"m=video (\d+)", ann.answer)[1])

    relay = offered(sound + pictures)
    assert relay and relay != first[1]
    cameras["ann"].talk(f"{EDGE_IP}:{relay}")
    cameras["ann"].await_packets(cameras["bob"], cameras["cem"])
    cameras["bob"].await_packets(cameras["ann"], cameras["cem"])
    (told,) = [one for one in room.conference()["participants"] if one["name"] == "ann"]
    assert [leg["medium"] for leg in told["media"]] == ["audio", "video"] and told["media"][1]["layers"] == "vp8"
    assert "ann also has video" in room.shunt("conference", "watch", "room", "--once")
    room.agent.kill()
    room.start_agent()
    room.await_ready()
    assert offered(sound + "m=video 0 RTP/AVP 96\r\n") == 0
    assert come_to_rest(lambda: (len(cameras["ann"].received(cameras["bob"])), len(cameras["ann"].received(cameras["cem"]))))
    assert offered(sound + pictures) == relay
    cameras["ann"].await_packets(cameras["bob"], cameras["cem"])
    assert offered(sound + pictures + "m=audio 40000 RTP/AVP 8\r\n") == relay and ann.answer.rstrip().endswith("m=audio 0 RTP/AVP 8"), "nothing else is taken up"
    assert [len(one["media"]) for one in room.conference()["participants"]] == [2, 2, 2]
    assert ann.bye() == 200
    cameras["ann"].hush()
    accounted([bob, cem])
    assert unbroken(bob.received(ann.party)) and unbroken(cameras["bob"].received(cameras["ann"]))


def test_a_caller_by_ice(room: Bridge) -> None:
    """Its media goes where its checks say, without a packet of RTP; others' packets to its port, and checks that do not hold, are nobody's."""
    ann = enter(room, "caller", "ann", media="video")
    eve = Phone(room, "callee", "eve")
    sdp = "m=video {port} RTP/AVPF 96\r\na=ice-ufrag:them\r\na=ice-pwd:0123456789012345678901\r\na=rtcp-mux\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 goog-remb\r\na=rtcp-fb:96 transport-cc\r\n"
    assert eve.call("room", sdp) == 200
    party, answer = eve.party, eve.answer
    assert "\r\na=ice-lite\r\n" in answer and "\r\na=rtcp-mux\r\n" in answer and "a=rtcp-fb:96 goog-remb" in answer and "transport-cc" not in answer
    port = int(re.search(r"m=video (\d+)", answer)[1])
    assert f"a=candidate:1 1 udp 2130706431 198.18.0.1 {port} typ host" in answer and "a=candidate:1 2" not in answer
    mine = Credentials(re.search(r"a=ice-ufrag:(\S+)", answer)[1], re.search(r"a=ice-pwd:(\S+)", answer)[1])
    party.relay = "198.18.0.1", port
    party.send_rtcp(request(mine, nominate=True, key="forged"))
    time.sleep(0.2)
    assert not party.stun and not party.received(ann)
    party.send_rtcp(request(mine, nominate=True))
    party.await_packets(ann)
    assert [data[:2] for data in party.stun] == [b"\x01\x01"]
    # Two are in a tree here: a relay entry would pass checks on to where nobody can answer them.
    room.await_design("NRA")
    party.talk(f"198.18.0.1:{port}")
    ann.await_packets(party)
    checks = len(party.stun)
    party.send_rtcp(request(mine))
    await_that(lambda: len(party.stun) > checks)
    assert len(party.stun) == checks + 1
    accounted([ann, party])


def test_the_command(room: Bridge) -> None:
    """From create to end, for people and as JSON."""
    assert room.shunt("conference", "create", "board") == "board is there\n"
    for name in ("ann", "bob"):
        assert f"{name} sends to   audio 198.18.0.1:2" in room.shunt("conference", "join", "board", name, "--media", "audio", "--media", "video")
    room.shunt("conference", "quality", "board", "ann", "bob", "audio")
    seen = json.loads(room.shunt("conference", "watch", "board", "--once", "--json"))
    assert seen["qualities"] == [{"sender": "ann", "receiver": "bob", "quality": "audio"}] and [one["present"] for one in seen["participants"]] == [False, False]
    assert "no source latched yet" in room.shunt("conference", "watch", "board", "--once")
    room.shunt("conference", "leave", "board", "bob")
    assert {one["name"]: one["participants"] for one in json.loads(room.shunt("conference", "list", "--json"))["conferences"]} == {"room": 0, "board": 1}
    with pytest.raises(LabError, match='conference board has no participant "bob"'):
        room.shunt("conference", "leave", "board", "bob")
    with pytest.raises(LabError, match="The media of 1 participant of board ends"):
        room.shunt("conference", "end", "board")
    assert room.shunt("conference", "end", "board", "--yes").endswith("board is over\n")


SENT = r"(?:ann|bob) +(?:audio|video) +198\.18\.\S+ +> 198\.18\.0\.1:\d+ +[1-9]\d* packets"


def test_the_worked_example(room: Bridge) -> None:
    """The commands of docs/start/conferences.md, one after the other, with two who talk: what `watch` shows then."""
    lines = (ROOT / "docs" / "start" / "conferences.md").read_text().splitlines()
    commands = [shlex.split(line.strip()[2:])[1:] for line in lines if line.startswith("    $ shunt conference ")]
    assert [argv[1] for argv in commands] == ["create", "join", "join", "quality", "watch", "leave", "end"]
    board, talking = commands[0][2], {}
    for argv in commands:
        if argv[1] == "watch":
            room.await_design("RA-R", board)
            talking["bob", "audio"].await_packets(talking["ann", "audio"])
            talking["ann", "video"].await_packets(talking["bob", "video"])
            assert come_to_rest(lambda: len(talking["bob", "video"].received(talking["ann", "video"]))), "bob gets ann's sound alone"
            assert await_that(lambda: all(flow["packets"] for flow in room.conference(board)["flows"])), "counts of copies are a second old at most"
        said = room.shunt(*argv)
        if argv[1] == "watch":  # the agent reads the counters every few seconds
            deadline = time.monotonic() + 120
            while len(re.findall(SENT, said)) < 4 and time.monotonic() < deadline:
                time.sleep(0.5)
                said = room.shunt(*argv)
        if argv[1] == "join":
            for medium, relay in re.findall(r"(audio|video) (\S+:\d+)", said):
                party = talking[argv[3], medium] = room.party({"ann": "caller", "bob": "callee"}[argv[3]], f"{argv[3]}'s {medium}")
                party.talk(relay)
        elif argv[1] == "watch":
            assert said.startswith(f"{board}: RA-R\n") and not re.search(r"ann +> bob +video", said)
            for flow in (r"ann +> bob +audio", r"bob +> ann +audio", r"bob +> ann +video"):
                assert re.search(flow + r" +[0-9a-f]{8} +[1-9]\d*\n", said), said
            assert len(re.findall(SENT, said)) == 4, said
