"""A WHIP sender and a WHEP viewer of GStreamer, whose DTLS certificates are of RSA: it publishes a test picture and a tone, and counts what it decodes.

    python3 tests/rooms/gstreamer.py publish|watch URL TOKEN [--seconds 5]

Runs with the system's Python, which has GStreamer's bindings. Prints one line of JSON: the answers of the server, and what came.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import urllib.request
from typing import Any
from urllib.parse import urljoin

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstSdp", "1.0")
gi.require_version("GstWebRTC", "1.0")
from gi.repository import GLib, Gst, GstSdp, GstWebRTC

_SENT = """
webrtcbin name=peer bundle-policy=max-bundle
videotestsrc is-live=true pattern=ball ! video/x-raw,width=320,height=180,framerate=15/1 ! vp8enc deadline=1 keyframe-max-dist=15
  ! rtpvp8pay mtu=1200 picture-id-mode=15-bit ! application/x-rtp,media=video,encoding-name=VP8,payload=96 ! peer.
audiotestsrc is-live=true wave=sine freq=1000 ! audioconvert ! audioresample ! opusenc
  ! rtpopuspay ! application/x-rtp,media=audio,encoding-name=OPUS,payload=111 ! peer.
"""
_WATCHED = (
    "application/x-rtp,media=video,encoding-name=VP8,clock-rate=90000,payload=96",
    "application/x-rtp,media=audio,encoding-name=OPUS,clock-rate=48000,encoding-params=(string)2,payload=111",
)


class Client:
    """One session: from the offer to its end."""

    def __init__(self, action: str, url: str, token: str, seconds: float) -> None:
        self.url, self.token, self.seconds = url, token, seconds
        self.found: dict[str, Any] = {"audio_frames": 0, "video_frames": 0, "state": "new"}
        self.loop = GLib.MainLoop()
        self.place: str | None = None
        if action == "publish":
            self.pipeline = Gst.parse_launch(_SENT)
            self.peer = self.pipeline.get_by_name("peer")
        else:
            self.pipeline = Gst.Pipeline.new(None)
            self.peer = Gst.ElementFactory.make("webrtcbin", "peer")
            self.peer.set_property("bundle-policy", GstWebRTC.WebRTCBundlePolicy.MAX_BUNDLE)
            self.pipeline.add(self.peer)
            for caps in _WATCHED:
                self.peer.emit("add-transceiver", GstWebRTC.WebRTCRTPTransceiverDirection.RECVONLY, Gst.Caps.from_string(caps))
            self.peer.connect("pad-added", self._came)
        if action == "publish":
            for number in range(2):
                one = self.peer.emit("get-transceiver", number)
                one.set_property("direction", GstWebRTC.WebRTCRTPTransceiverDirection.SENDONLY)
        # libnice 0.1.21 keeps a path open with indications unless it is told to send checks, and only those are consent (RFC 7675).
        self.ice = self.peer.get_property("ice-agent")  # the binding takes a reference that is not its own, so this one must stay
        self.ice.get_property("agent").set_property("keepalive-conncheck", True)
        self.peer.connect("notify::connection-state", self._state)

    def run(self) -> dict[str, Any]:
        """Until it has been connected for so long, or 30 s after nothing came of it."""
        self.pipeline.set_state(Gst.State.PLAYING)
        GLib.timeout_add(500, self._offer)
        GLib.timeout_add_seconds(30 + int(self.seconds), self.loop.quit)
        self.loop.run()
        self.found["delete"] = self._ask("DELETE", self.place, None)[0] if self.place else None
        self.pipeline.set_state(Gst.State.NULL)
        return self.found

    def _offer(self) -> bool:
        self.peer.emit("create-offer", None, Gst.Promise.new_with_change_func(self._offered, None))
        return False

    def _offered(self, promise: Any, _: Any) -> None:
        reply = promise.get_reply()  # the offer lives as long as this
        offer = reply.get_value("offer")
        self.peer.emit("set-local-description", offer, Gst.Promise.new())
        status, headers, answer = self._ask("POST", self.url, offer.sdp.as_text())
        self.found["post"] = status
        if status != 201:
            self.found["answer"] = answer
            self.loop.quit()
            return
        self.place = urljoin(self.url, headers["Location"])
        _, sdp = GstSdp.SDPMessage.new()
        GstSdp.sdp_message_parse_buffer(answer.encode(), sdp)
        made = GstWebRTC.WebRTCSessionDescription.new(GstWebRTC.WebRTCSDPType.ANSWER, sdp)
        self.peer.emit("set-remote-description", made, Gst.Promise.new())

    def _ask(self, method: str, url: str, body: str | None) -> tuple[int, Any, str]:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {self.token}"} | ({"Content-Type": "application/sdp"} if body else {})
        request = urllib.request.Request(url, data=body.encode() if body else None, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, context=trusting, timeout=10) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def _state(self, peer: Any, _: Any) -> None:
        state = peer.get_property("connection-state").value_nick
        self.found["state"] = state
        if state == "connected":
            GLib.timeout_add(int(self.seconds * 1000), self.loop.quit)

    def _came(self, _: Any, pad: Any) -> None:
        if pad.get_direction() != Gst.PadDirection.SRC:
            return
        media = pad.get_current_caps().get_structure(0).get_string("media")
        decoder, sink = "rtpvp8depay ! vp8dec" if media == "video" else "rtpopusdepay ! opusdec", f"fakesink name={media} sync=false signal-handoffs=true"
        taken = Gst.parse_bin_from_description(f"queue ! {decoder} ! {sink}", True)
        taken.get_by_name(media).connect("handoff", self._decoded, f"{media}_frames")
        self.pipeline.add(taken)
        taken.sync_state_with_parent()
        pad.link(taken.get_static_pad("sink"))

    def _decoded(self, _sink: Any, _buffer: Any, _pad: Any, what: str) -> None:
        self.found[what] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["publish", "watch", "check"])
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("token", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    Gst.init(None)
    lacking = [name for name in ("webrtcbin", "nicesrc", "vp8enc", "vp8dec", "opusenc", "opusdec") if Gst.ElementFactory.find(name) is None]
    if lacking:
        sys.exit(f"GStreamer lacks {', '.join(lacking)}")
    if given.action != "check":
        print(json.dumps(Client(given.action, given.url, given.token, given.seconds).run()), flush=True)
        os._exit(0)  # see Client.ice


if __name__ == "__main__":
    main()
