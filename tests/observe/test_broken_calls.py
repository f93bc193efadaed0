"""Real calls that are broken in one way each, through the SIP server: the operator is told that cause."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.lab.phone import Callee, Caller, body
from tests.lab.processes import open_socket
from tests.lab.topology import EDGE_IP, LabError
from tests.observe.conftest import Watched

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# What comes back has ports of the same ranges, and would be counted with it.
_LOSS = f"""table inet lossy {{
  chain on_the_way {{ type filter hook forward priority 0; ip daddr {EDGE_IP} udp dport 35000-65000 numgen inc mod 10 0 drop; }}
}}"""


@dataclass
class Call:
    """Two phones, before they call each other."""

    watched: Watched
    caller: Caller
    callee: Callee
    undo: contextlib.ExitStack

    def told(self) -> str:
        """The diagnosis as it is now, a line each."""
        try:
            found = json.loads(self.watched.lab.edge.shunt("history", self.caller.call_id, "--json"))
        except LabError as error:
            return str(error)
        return "\n".join(f"{finding['level']}: {finding['text']}" for finding in found["diagnosis"])

    def await_told(self, wanted: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while re.search(wanted, told := self.told()) is None:
            assert time.monotonic() < deadline, f"not told: {wanted}\n{told}"
            time.sleep(0.2)


@pytest.fixture
def call(watched: Watched, request: pytest.FixtureRequest) -> Iterator[Call]:
    host = "natcaller" if "behind" in request.node.name else "caller"
    with contextlib.ExitStack() as undo:
        phones = Caller(watched.lab.topology, host), Callee(watched.lab.topology)
        for phone in phones:
            undo.callback(phone.close)
        yield Call(watched, *phones, undo)


def silent_callee(call: Call) -> None:
    call.callee.mute()


def silent_parties(call: Call) -> None:
    call.caller.mute()
    call.callee.mute()


def busy(call: Call) -> None:
    call.callee.answer = 486, ""


def not_acceptable(call: Call) -> None:
    call.callee.answer = 488, ""


def other_payload_type(call: Call) -> None:
    call.callee.packet = lambda: call.callee.rtp(18)


def other_codec(call: Call) -> None:
    call.callee.answer = 200, body(call.callee.ip, call.callee.port, (8,))
    call.callee.packet = lambda: call.callee.rtp(8)


def not_rtp(call: Call) -> None:
    call.callee.packet = lambda: b"hello" + bytes(100)


def private_address(call: Call) -> None:
    call.callee.answer = 200, body("192.168.77.3", call.callee.port)
    call.callee.mute()


def receives_only(call: Call) -> None:
    call.callee.answer = 200, body(call.callee.ip, call.callee.port, more="a=recvonly")
    call.callee.mute()


def other_port(call: Call) -> None:
    """Media goes past the relay: the SDP was changed on the way."""
    call.callee.listen_to = lambda text: setattr(call.callee, "relay", ("198.18.0.1", 34_001))  # type: ignore[method-assign]


def loss_behind_nat(call: Call) -> None:
    topology = call.watched.lab.topology
    topology.run("nat", "nft", "-f", "-", stdin=_LOSS)
    call.undo.callback(topology.run, "nat", "nft", "delete", "table", "inet", "lossy")


def falls_silent(call: Call) -> None:
    """After a second of speech."""
    speaks = call.caller.packet
    call.caller.packet = lambda: speaks() if call.caller.sent < 50 else None


def rival_behind_another_nat(call: Call) -> None:
    """Somebody else sends to the caller's relay port."""
    made = open_socket(call.watched.lab.topology, "caller", socket.AF_INET, socket.SOCK_DGRAM)
    over = threading.Event()
    number = iter(range(1 << 16))

    def attack() -> None:
        while not over.wait(0.02):
            if call.caller.relay is not None:
                made.sendto(bytes.fromhex("8000") + next(number).to_bytes(2, "big") + bytes(4) + b"evil" + bytes(160), call.caller.relay)

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    call.undo.callback(made.close)
    call.undo.callback(thread.join)
    call.undo.callback(over.set)


BROKEN: list[tuple[Callable[[Call], None], int, str]] = [
    (silent_callee, 200, r"problem: One-way audio: the caller sends, but the callee has sent nothing so far[^\n]*\n.*Not one packet reached"),
    (silent_parties, 200, r"^problem: No audio either way: the caller has sent nothing so far, and the callee has sent nothing so far"),
    (busy, 486, r"ended with 486 \(As told\) from 198\.18\.2\.2:5060"),
    (not_acceptable, 488, r"ended with 488 \(As told\) from 198\.18\.2\.2:5060"),
    (other_payload_type, 200, r"^problem: .*the callee sends what is RTP of payload type 18 \(G729\), which no SDP of the call lists"),
    (other_codec, 200, r"^problem: .*no codec of the offer \(the caller's SDP has PCMU, the callee's PCMA\)"),
    (not_rtp, 200, r"^problem: .*the callee sends what is not RTP"),
    (private_address, 200, r"The callee's SDP names 192\.168\.77\.3, a private address"),
    (receives_only, 200, r"^ok: One-way media, as signalled: the callee's SDP says recvonly"),
    (other_port, 200, r"it sends elsewhere because the SDP that it got was changed on the way"),
    (loss_behind_nat, 200, r"problem: (9|10|11)\.\d % of the caller's packets were lost before they arrived here"),
    (falls_silent, 200, r"problem: One-way audio: the callee sends, but the caller has sent nothing for \d+ s"),
    (rival_behind_another_nat, 200, r"hint: \d+ packets to the caller's relay port came from other sources \(198\.18\.1\.2:\d+\) and were ignored"),
]


@pytest.mark.parametrize(("broken", "status", "wanted"), BROKEN, ids=[broken.__name__ for broken, _, _ in BROKEN])
def test_the_cause_is_told(call: Call, broken: Callable[[Call], None], status: int, wanted: str) -> None:
    broken(call)
    assert call.caller.call() == status
    call.await_told(wanted)
    if status == 200:
        call.caller.hang_up()


def test_a_call_that_is_well_is_said_to_be_well(call: Call) -> None:
    assert call.caller.call() == 200
    call.await_told(r"^ok: Media flows both ways")
    assert "problem" not in call.told()
    call.caller.hang_up()
    call.await_told(r"^ok: Media flowed both ways")
    assert "problem" not in call.told()


def test_sip_is_told_in_its_order(call: Call) -> None:
    """Copies of one message from several processes of the SIP server come in any order."""
    assert call.caller.call() == 200
    call.await_told(r"^ok: Media flows both ways")
    call.caller.hang_up()
    edge = call.watched.lab.edge

    def told() -> list[str]:
        return [event["what"] for event in json.loads(edge.shunt("history", call.caller.call_id, "--json"))["events"] if event["kind"] == "sip"]

    deadline = time.monotonic() + 60
    while told().count("200") < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    wanted = ["INVITE", "INVITE", "200", "200", "ACK", "ACK", "BYE", "BYE", "200", "200"]
    assert [what for what in told() if what != "100"] == wanted
