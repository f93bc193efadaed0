"""Two Chromiums, a Firefox and a SIP phone in one room, as people have them: encrypted, over TLS, one browser behind a NAT; through Kamailio, softswitch, agent and edges.

The tests of this module are one evening in one lab, in this order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conference_control.lab import Phone, sip_server
from tests.lab.browser import CHROMIUM, FIREFOX, Browser
from tests.lab.party import await_that
from tests.lab.topology import NATCALLER_IP
from tests.rooms import pictures
from tests.rooms.demo import ROOM, enter, gaps
from tests.rooms.lab import RoomLab, hears, lobby, report, room_lab, sees

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


class Evening:
    """The lab, who is there, and the phone."""

    def __init__(self, room: RoomLab) -> None:
        self.room = room
        self.ann = room.browser("caller", "ann", CHROMIUM)
        self.bob = room.browser("callee", "bob", FIREFOX)
        self.cem = room.browser("natcaller", "cem", CHROMIUM)
        self.phone = Phone(room, "callee", "dora", server=5060)
        self.phone.party.payload_type, self.phone.party.gap_s = 0, 0.02

    @property
    def browsers(self) -> list[Browser]:
        return [self.ann, self.bob, self.cem]

    def come(self) -> None:
        """The phone calls, and one browser after the other enters."""
        assert self.phone.call(ROOM) == 200, self.phone.answer
        assert enter(self.room, self.ann, 1, []) is None
        for whose, browser, others in ((2, self.bob, ["ann"]), (3, self.cem, ["ann", "bob"])):
            taken = enter(self.room, browser, whose, others)
            assert taken is not None

    def everybody_sees_everybody(self) -> None:
        """Further frames of everybody come to everybody."""
        for browser in self.browsers:
            pictures.await_frames(browser, *(one.name for one in self.browsers if one is not browser))

    def lost(self) -> dict[str, int]:
        """Packets lost, by browser."""
        return {browser.name: sum(line["packetsLost"] for line in report(browser)["lines"].values() if line) for browser in self.browsers}

    def sessions(self) -> list[int]:
        return [report(browser)["sessions"] for browser in self.browsers]


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evening]:
    work: Path = tmp_path_factory.mktemp("rooms")
    with room_lab(work, edges=2) as room:
        room.ask("POST", f"/v1/conferences?name={ROOM}")
        room.await_ready()
        room.move_focus("127.0.0.1")
        server = sip_server(room, websockets=True)
        try:
            evening = Evening(room)
            evening.come()
            yield evening
        finally:
            print(room.diagnosis())
            server.stop()


def test_three_browsers_and_a_phone_see_and_hear_each_other(evening: Evening) -> None:
    room, phone = evening.room, evening.phone
    for browser in evening.browsers:
        others = [one.name for one in evening.browsers if one is not browser]
        sees(browser, *others)
        hears(browser, *others, "dora")
    evening.everybody_sees_everybody()
    for browser in evening.browsers:
        seen = pictures.watched(browser)
        assert all(one["corrupt"] == 0 for one in seen.values()), (browser.name, seen)
        for key, whose in (("ann/video", "1"), ("bob/video", "2"), ("cem/video", "3")):
            assert key not in seen or set(seen[key]["whose"]) == {whose}, (browser.name, key, seen[key])
    assert await_that(lambda: len(phone.party.got) == 3), "the phone hears three"
    assert {one["codecs"][0]["encoding"] for member in room.conference(ROOM)["participants"] for one in member["media"] if one["medium"].startswith("audio")} == {"PCMU"}


def test_agent_and_softswitch_die_and_nobody_notices(evening: Evening) -> None:
    room = evening.room
    before, sessions = evening.lost(), evening.sessions()
    room.agent.kill()
    room.softswitch.kill()
    evening.everybody_sees_everybody()
    room.start_softswitch()
    room.start_agent()
    room.await_ready()
    evening.everybody_sees_everybody()
    time.sleep(1.5)  # a look at the figures
    assert evening.lost() == before and evening.sessions() == sessions, "no packet is lost, and nobody has to come again"
    assert gaps(evening.phone)[1] == 0


@pytest.mark.slow
def test_a_narrow_link_is_noticed_by_who_is_behind_it_alone(evening: Evening) -> None:
    """150 kbit/s do not even carry two voices in G.711: no video is sent there, until there is room again."""
    room, cem = evening.room, evening.cem
    before = {name: count for name, count in evening.lost().items() if name != "cem"}

    def pictures_sent() -> int:
        """Of how many the agent has video sent to who is behind the link."""
        return sum(not one["paused"] for one in room.conference(ROOM)["downlinks"] if one["receiver"] == "cem" and one["medium"] == "video")

    assert await_that(lambda: pictures_sent() == 2)
    room.topology.run("nat", "tc", "qdisc", "add", "dev", "lan", "root", "tbf", "rate", "150kbit", "burst", "4kb", "latency", "300ms")
    try:
        assert await_that(lambda: pictures_sent() == 0), [one for one in room.conference(ROOM)["downlinks"] if one["receiver"] == "cem"]
        for browser, others in ((evening.ann, ["bob", "cem"]), (evening.bob, ["ann", "cem"])):
            pictures.await_frames(browser, *others)
        assert {name: count for name, count in evening.lost().items() if name != "cem"} == before
    finally:
        room.topology.run("nat", "tc", "qdisc", "del", "dev", "lan", "root")
    pictures.await_frames(cem, "ann", "bob")
    assert evening.sessions() == [1, 1, 1]


def test_the_operator_daemon_dies_and_goes_on_with_all_sessions(evening: Evening) -> None:
    room = evening.room
    room.operator.kill()
    evening.everybody_sees_everybody()
    room.start_operator()
    assert await_that(lambda: len(room.ask("GET", f"/v1/rooms/{ROOM}")["browsers"]) == 3)
    assert evening.sessions() == [1, 1, 1]
    assert "ann" in room.shunt_room("list")
    evening.bob.click("#camera")  # renegotiates with the new process, and the others hear of it from it
    evening.ann.await_that("room.look.participants.find((one) => one.name === 'bob').media.video === false")
    evening.bob.click("#camera")
    evening.ann.await_that("room.look.participants.find((one) => one.name === 'bob').media.video === true")
    before = report(evening.ann)["lines"]["bob/video"]["frames"]
    evening.ann.await_that(f"room.report().lines['bob/video'].frames > {before} + 5")


def test_a_screen_is_one_tile_more(evening: Evening) -> None:
    """Chromium picks a screen by itself where nobody is asked; what is shared here is a canvas, for there is no screen."""
    evening.ann.evaluate(
        "void (navigator.mediaDevices.getDisplayMedia = async () => { const canvas = document.createElement('canvas'); const to = canvas.getContext('2d');"
        " setInterval(() => { to.fillStyle = `hsl(${Date.now() % 360} 60% 50%)`; to.fillRect(0, 0, 300, 150); }, 100); return canvas.captureStream(10); })"
    )
    evening.ann.click("#screen")
    for browser in (evening.bob, evening.cem):
        browser.await_that("(room.report().lines['ann/screen']?.frames ?? 0) > 3")
        assert browser.evaluate("room.tiles.all.has('ann/screen')")
    evening.ann.click("#screen")
    for browser in (evening.bob, evening.cem):
        browser.await_that("!room.tiles.all.has('ann/screen')")
    evening.everybody_sees_everybody()


def test_senders_without_a_line_are_counted_and_marked(evening: Evening) -> None:
    told: dict[str, str] = evening.ann.evaluate(
        """(() => {
          const before = room.look;
          room.looked(room.session, { ...before, without_line: { audio: ["bob"], video: ["bob", "cem"], screen: [] } });
          const marks = (id) => room.tiles.all.get(`${id}/video`).element.textContent.includes("not heard") ? "not heard" : "";
          const told = { status: document.getElementById("status").textContent, bob: marks("bob"), cem: marks("cem") };
          room.looked(room.session, before);
          return { ...told, after: document.getElementById("status").textContent };
        })()"""
    )
    everybody = told["after"]
    assert told == {"status": f"{everybody} · 1 not heard · 2 not shown", "bob": "not heard", "cem": "", "after": everybody}
    assert "not" not in everybody


def test_an_edge_dies_and_its_browsers_come_again(evening: Evening) -> None:
    room = evening.room
    of = {one["participant"]: one["edge"] for one in room.ask("GET", f"/v1/rooms/{ROOM}")["browsers"]}
    assert set(of.values()) == {str(control) for control in room.controls}, "browsers are shared out among the edges"
    number = room.controls.index(Path(of["cem"]))
    mine = {name for name, edge in of.items() if edge == of["cem"]}
    before = dict(zip(of, evening.sessions()))
    room.edges[number].kill()
    for browser in evening.browsers:
        if browser.name in mine:
            browser.await_that(f"room.report().sessions > {before[browser.name]} && room.report().state === 'connected'")
    for browser in evening.browsers:
        sees(browser, *(one.name for one in evening.browsers if one is not browser))
    evening.everybody_sees_everybody()
    assert {browser.name for browser, count in zip(evening.browsers, evening.sessions()) if count > before[browser.name]} == mine, "nobody else has to come again"
    assert sorted(name for name in room.names(ROOM)) == ["ann", "bob", "cem", "dora"], "under the same names"
    room.start_edge(number)


def test_a_browser_in_another_network_stays_in_its_session(evening: Evening) -> None:
    """Its host gets another address, and loses the one that it had: ICE begins anew with what the new one offers."""
    room, cem = evening.room, evening.cem
    before, sessions = report(cem), {one["participant"]: one["session"] for one in room.ask("GET", f"/v1/rooms/{ROOM}")["browsers"]}
    change = "addr del {} dev eth0\naddr add {} dev eth0\nroute replace default via 192.168.50.1"
    here, there = f"{NATCALLER_IP}/24", "192.168.50.77/24"
    room.topology.run("natcaller", "ip", "-batch", "-", stdin=change.format(here, there))
    try:
        cem.await_that(f"room.report().restarts > {before['restarts']} && room.report().state === 'connected'")
        sees(cem, "ann", "bob")
        evening.everybody_sees_everybody()
        now = report(cem)
        assert (now["sessions"], now["lost"]) == (before["sessions"], before["lost"]), "nothing but ICE has begun anew"
        assert {one["participant"]: one["session"] for one in room.ask("GET", f"/v1/rooms/{ROOM}")["browsers"]} == sessions
    finally:
        room.topology.run("natcaller", "ip", "-batch", "-", stdin=change.format(there, here))
    cem.await_that(f"room.report().restarts > {now['restarts']} && room.report().state === 'connected'")


@pytest.mark.slow
def test_a_browser_whose_network_fails_comes_again(evening: Evening) -> None:
    room, cem = evening.room, evening.cem
    before = report(cem)["sessions"]
    room.topology.run(
        "edge", "nft", "-f", "-", stdin="table inet cut {\n chain forward { type filter hook forward priority 0; ip saddr 198.18.3.2 meta l4proto { tcp, udp } th dport 3478-3479 drop; }\n}"
    )
    try:
        cem.await_that("document.querySelector('#status').textContent.startsWith('Lost') || room.report().lost > 1")
    finally:
        room.topology.run("edge", "nft", "delete", "table", "inet", "cut")
    cem.await_that(f"room.report().sessions > {before} && room.report().state === 'connected'")
    sees(cem, "ann", "bob")
    evening.everybody_sees_everybody()
    assert sorted(room.names(ROOM)) == ["ann", "bob", "cem", "dora"], "under the same name, and once"


def test_a_token_of_another_room_and_one_that_is_late_open_nothing(evening: Evening) -> None:
    room, cem = evening.room, evening.cem
    cem.click("#leave")
    assert await_that(lambda: "cem" not in room.names(ROOM))
    page = room.link("kitchen")["page"].replace("/kitchen#", f"/{ROOM}#")
    lobby(cem, page)
    cem.await_that("document.querySelector('#trouble').textContent.includes('another room')")
    late = room.link(ROOM, valid_s="1")
    lobby(cem, late["page"])
    time.sleep(2.5)
    cem.click("#join")
    cem.await_that("document.querySelector('#trouble').textContent.includes('expired')")
    assert room.names(ROOM).count("cem") == 0


def test_who_publishes_by_whip_is_seen_by_all_and_by_whep(evening: Evening) -> None:
    room, cem = evening.room, evening.cem
    cem.open(room.url + f"/rooms/{ROOM}")
    publish, watch = (room.link("stage", role=role) for role in ("publish", "watch"))
    result: dict[str, Any] = cem.evaluate(_WHIP_AND_WHEP % (publish["whip"], publish["token"], watch["whep"], watch["token"]))
    assert result["statuses"] == [201, 201] and result["width"] > 0, result
    assert result["restarted"] == [200, 200] and result["moved"] and result["more"] >= 10, result
    assert result["ended"] == [200, 200]
    assert await_that(lambda: room.names("stage") == [])


def test_a_browser_calls_by_sip_over_a_websocket(evening: Evening) -> None:
    room, cem = evening.room, evening.cem
    cem.open("about:blank")
    result: dict[str, Any] = cem.evaluate(_SIP % ("ws://198.18.0.1:8080", ROOM))
    assert result["statuses"] == [100, 200] and result["width"] > 0, result
    evening.ann.await_that("(room.report().lines['web/video']?.frames ?? 0) > 3")
    assert [one["call_id"] for one in room.conference(ROOM)["participants"] if one["name"] == "web"] == ["web-call"]
    assert cem.evaluate("window.hangUp()") == 200
    assert await_that(lambda: "web" not in room.names(ROOM))
    assert await_that(lambda: all(one["participant"] != "web" for number in (0, 1) for one in room.at_edge(number)))


def test_nothing_is_left_behind(evening: Evening) -> None:
    room = evening.room
    assert evening.phone.bye() == 200
    for browser in (evening.ann, evening.bob):
        browser.click("#leave")
    assert await_that(lambda: room.names(ROOM) == []), room.names(ROOM)
    assert await_that(lambda: not room.at_edge(0) and not room.at_edge(1))


_WHIP_AND_WHEP = """(async ([whip, publish, whep, watch]) => {
  const canvas = document.createElement("canvas"), to = canvas.getContext("2d");
  setInterval(() => { to.fillStyle = `hsl(${Date.now() %% 360} 60%% 50%%)`; to.fillRect(0, 0, 300, 150); }, 66);
  const begin = async (pc, where, token) => {
    await pc.setLocalDescription(await pc.createOffer());
    const answer = await fetch(where, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/sdp" }, body: pc.localDescription.sdp });
    await pc.setRemoteDescription({ type: "answer", sdp: await answer.text() });
    return [answer.status, new URL(answer.headers.get("Location"), where).href];
  };
  const sender = new RTCPeerConnection(), viewer = new RTCPeerConnection();
  sender.addTransceiver(canvas.captureStream(15).getVideoTracks()[0], { direction: "sendonly" });
  const line = viewer.addTransceiver("video", { direction: "recvonly" });
  const video = Object.assign(document.createElement("video"), { muted: true, srcObject: new MediaStream([line.receiver.track]) });
  const [first, sent] = await begin(sender, whip, publish);
  const [second, seen] = await begin(viewer, whep, watch);
  video.play();
  for (let at = 0; at < 200 && !video.videoWidth; at++) await new Promise((resolve) => setTimeout(resolve, 100));
  const restart = async (pc, where, token) => {
    pc.restartIce();
    const before = pc.remoteDescription.sdp, of = (name, text) => new RegExp(`a=${name}:(.*)`).exec(text)[1];
    await pc.setLocalDescription();
    const fragment = pc.localDescription.sdp.split("\\r\\n").filter((one) => /^(a=group:|m=|a=mid:|a=ice-ufrag:|a=ice-pwd:)/.test(one)).join("\\r\\n") + "\\r\\n";
    const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*" };
    const answer = await fetch(where, { method: "PATCH", headers, body: fragment }), text = await answer.text();
    if (answer.status !== 200) return text;
    const renewed = ["ice-ufrag", "ice-pwd"].reduce((sdp, name) => sdp.replaceAll(of(name, before), of(name, text)), before);
    await pc.setRemoteDescription({ type: "answer", sdp: renewed });
    return answer.status;
  };
  const of = async (pc, type) => [...(await pc.getStats()).values()].find((one) => one.type === type);
  const was = [await of(sender, "transport"), await of(viewer, "transport")].map((one) => one.selectedCandidatePairId);
  const restarted = [await restart(sender, sent, publish), await restart(viewer, seen, watch)];
  let moved = false;
  for (let at = 0; at < 200 && !moved; at++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    const now = [await of(sender, "transport"), await of(viewer, "transport")];
    moved = now.every((one, which) => one.iceState === "connected" && one.selectedCandidatePairId !== was[which]);
  }
  const frames = (await of(viewer, "inbound-rtp")).framesDecoded;
  let more = 0;
  for (let at = 0; at < 200 && more < 10; at++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    more = (await of(viewer, "inbound-rtp")).framesDecoded - frames;
  }
  const end = async (where, token) => (await fetch(where, { method: "DELETE", headers: { Authorization: `Bearer ${token}` } })).status;
  return { statuses: [first, second], restarted, moved, more, width: video.videoWidth, ended: [await end(sent, publish), await end(seen, watch)] };
})(["%s", "%s", "%s", "%s"])"""

# A user agent of few words, as JsSIP puts them.
_SIP = """(async (server, room) => {
  const socket = new WebSocket(server, "sip"), texts = [], waiting = [];
  socket.onmessage = (event) => { texts.push(event.data); waiting.splice(0).forEach((one) => one()); };
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  const next = async (method) => {
    for (;;) {
      const at = texts.findIndex((text) => new RegExp(`^CSeq: *[0-9]+ ${method}`, "im").test(text));
      if (at >= 0) return texts.splice(at, 1)[0];
      await new Promise((resolve) => waiting.push(resolve));
    }
  };
  const headers = (text, name) => text.split("\\r\\n").filter((line) => line.toLowerCase().startsWith(name + ":")).map((line) => line.slice(name.length + 1).trim());
  let to = `<sip:${room}@198.18.0.1>`, target = `sip:${room}@198.18.0.1`, route = [], number = 0;
  const send = (method, body = "") => {
    if (method !== "ACK") number++;
    const lines = [`${method} ${target} SIP/2.0`, ...route.map((one) => `Route: ${one}`), `Via: SIP/2.0/WS x7.invalid;branch=z9hG4bK${method}${number}`, "Max-Forwards: 70", "From: <sip:web@198.18.0.1>;tag=w1",
      `To: ${to}`, "Call-ID: web-call", `CSeq: ${number} ${method}`, "Contact: <sip:web@x7.invalid;transport=ws>", ...(body ? ["Content-Type: application/sdp"] : []), `Content-Length: ${body.length}`];
    socket.send(lines.join("\\r\\n") + "\\r\\n\\r\\n" + body);
  };
  const canvas = document.createElement("canvas"), ink = canvas.getContext("2d");
  setInterval(() => { ink.fillStyle = `hsl(${Date.now() %% 360} 60%% 50%%)`; ink.fillRect(0, 0, 300, 150); }, 66);
  const pc = new RTCPeerConnection({ bundlePolicy: "max-bundle" });
  pc.addTransceiver(canvas.captureStream(15).getVideoTracks()[0], { direction: "sendonly" });
  const line = pc.addTransceiver("video", { direction: "recvonly" });
  const video = Object.assign(document.createElement("video"), { muted: true, srcObject: new MediaStream([line.receiver.track]) });
  await pc.setLocalDescription(await pc.createOffer());
  send("INVITE", pc.localDescription.sdp);
  const statuses = [];
  let answer;
  do {
    answer = await next("INVITE");
    statuses.push(Number(answer.split(" ")[1]));
  } while (statuses.at(-1) < 200);
  if (statuses.at(-1) === 200) {
    to = headers(answer, "to")[0];
    target = headers(answer, "contact")[0].match(/<(.*)>/)[1];
    route = headers(answer, "record-route").reverse();
  }
  send("ACK");
  if (statuses.at(-1) !== 200) return { statuses, answer };
  await pc.setRemoteDescription({ type: "answer", sdp: answer.slice(answer.indexOf("\\r\\n\\r\\n") + 4) });
  video.play();
  for (let at = 0; at < 200 && !video.videoWidth; at++) await new Promise((resolve) => setTimeout(resolve, 100));
  window.hangUp = async () => { send("BYE"); return Number((await next("BYE")).split(" ")[1]); };
  return { statuses, width: video.videoWidth };
})("%s", "%s")"""
