"""Places one call of a kind in the lab and gathers what the phones' captures and the agent's API say of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.capture import Account, Call, Capture, account
from tests.lab.processes import Edge
from tests.lab.sipp import Sipp, register
from tests.lab.topology import LabError, Topology

SIP_PORT = 5071
MEDIA = {"caller": 6000, "natcaller": 6000, "callee": 7000}


@dataclass
class Lab:
    """A running lab and the users registered in it."""

    topology: Topology
    edge: Edge
    work: Path
    registered: set[str] = field(default_factory=set)

    def register(self, user: str, port: int, version: int = 4) -> None:
        """Register a user at the callee, once per port."""
        key = f"{user}:{port}"
        if key not in self.registered:
            register(self.topology, self.work, "callee", user, port, version)
            self.registered.add(key)


@dataclass
class Outcome:
    """What is known of a call after it."""

    call: Call
    packets: Account
    seen: list[dict[str, Any]]  # the agent's view of it, again and again while it lasted
    seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)  # the agent's events of it; empty where no agent has seen it

    def streams(self, view: dict[str, Any], component: str = "rtp") -> list[dict[str, Any]]:
        return [s for line in view["media"] for s in line["streams"] if s["component"] == component]

    @property
    def last_up(self) -> dict[str, Any]:
        """The agent's last view in which every RTP stream was offloaded. Raises AssertionError with the last view if there was none."""
        for view in reversed(self.seen):
            streams = self.streams(view)
            if streams and all(s["state"] == "offloaded" for s in streams):
                return view
        raise AssertionError(f"never were all streams offloaded; the last view: {self.seen[-1] if self.seen else None}")

    def states(self) -> dict[str, list[str]]:
        """The states that each RTP stream went through, by the stream's name, from the agent's history of the call."""
        found: dict[str, list[str]] = {}
        for event in self.history:
            if event["kind"] == "state" and event["component"] == "rtp":
                found.setdefault(event["stream"], []).append(event["what"])
        return found


def place(
    lab: Lab,
    caller_scenario: str,
    callee_scenario: str,
    *,
    host: str = "caller",
    caller_version: int = 4,
    callee_version: int = 4,
    talk_ms: int = 700,
    trunk: bool = False,
    during: Callable[[], None] | None = None,
) -> Outcome:
    """Place one call and watch it to its end. trunk: the callee is the trunk, and not a registered user.

    during: called once every stream, RTP and RTCP, is offloaded, while the call goes on. Raises LabError if SIPp saw
    the call go in another way than the scenarios say.
    """
    port = 5060 if trunk else SIP_PORT + (callee_version == 6)
    user = "0123456789" if trunk else f"bob{callee_version}"
    if not trunk:
        lab.register(user, port, callee_version)
    captures = [Capture(lab.topology, lab.work, name, full=True).start() for name in (host, "callee")]
    callee = Sipp(lab.topology, lab.work, "callee", callee_scenario, sip_port=port, media_port=MEDIA["callee"], version=callee_version, calls=1, talk_ms=talk_ms)
    caller = Sipp(lab.topology, lab.work, host, caller_scenario, sip_port=5080, media_port=MEDIA[host], user=user, version=caller_version, calls=1, talk_ms=talk_ms)
    try:
        started = time.monotonic()
        callee.start()
        caller.start()
        seen: list[dict[str, Any]] = []
        while caller.process.alive:
            if time.monotonic() - started > 90:
                raise LabError(f"{caller.name} does not end:\n{caller.process.tail()}")
            try:
                seen += [view for view in lab.edge.calls() if not view["ended"]]
            except LabError:
                if lab.edge.agent.alive:
                    raise
            if during is not None and seen and all(s["state"] == "offloaded" for line in seen[-1]["media"] for s in line["streams"]):
                during()
                during = None
            time.sleep(0.02)
        assert during is None, f"not every stream was offloaded: {seen[-1] if seen else None}"
        caller.finish()
        callee.finish()
        seconds = time.monotonic() - started
    finally:
        caller.stop()
        callee.stop()
        for capture in captures:
            capture.stop()
    calls, packets = account(captures)
    assert len(calls) == 1, f"one call was placed, the captures have {sorted(calls)}"
    (call,) = calls.values()
    history = lab.edge.history(call.call_id) if lab.edge.agent.alive else []
    return Outcome(call, packets, seen, seconds, history)


def await_clean(lab: Lab, seconds: float = 60.0) -> dict[str, Any]:
    """Wait until the agent has no call with entries, and data plane and relay none at all; return the status. Raises AssertionError.

    A call that has ended while the agent was away is found by its silence, after half a media time-out.
    """
    deadline = time.monotonic() + seconds
    while True:
        status = lab.edge.status()
        sessions = sum(relay["sessions"] or 0 for relay in status["relays"])
        if lab.edge.relay_name == "rtpengine" and lab.edge.relay.alive:
            sessions += lab.edge.relay_sessions()
        if status["data_plane"]["ours"] == 0 and status["data_plane"]["entries"] == 0 and not sessions:
            return status
        assert time.monotonic() < deadline, f"left behind after {seconds} s: {sessions} sessions, {status}"
        time.sleep(0.1)
