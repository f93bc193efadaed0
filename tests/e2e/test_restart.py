"""A restarted SIP server has forgotten its dialogs: the requests of earlier calls pass by their signature, and others do not."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.phone import Callee, Caller, body
from tests.lab.processes import Edge
from tests.lab.sipload import Message
from tests.lab.topology import EDGE_IP, Topology
from tests.lab.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

Scene = tuple[Edge, Caller, Callee]


@pytest.fixture(params=[(server, relay) for server in ("kamailio", "opensips") for relay in ("rtpproxy", "rtpengine", "builtin")], ids="-".join)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A call between a customer and the trunk, whose SIP server has been killed and started again."""
    server, relay = request.param
    need(server, *([relay] if relay != "builtin" else []))
    with Topology("e2e") as topology, Edge(topology, tmp_path, server, relay, data_plane=False) as edge:
        callee, caller = Callee(topology), Caller(topology)
        try:
            assert caller.call() == 200
            edge.sip_server.kill()
            edge.start_sip_server()
            yield edge, caller, callee
        finally:
            caller.close()
            callee.close()


def _asks_the_relay(edge: Edge, text: str) -> None:
    assert re.search(rf"^c=IN IP4 {re.escape(EDGE_IP)}\r?$", text, re.MULTILINE), f"the relay's address is missing:\n{text}\n{edge.sip_server.tail()}"


def test_requests_of_both_parties_pass(scene: Scene) -> None:
    """Re-INVITE, UPDATE, INFO and BYE, from caller and callee; offers and answers go to the relay as before the restart."""
    edge, caller, callee = scene
    number = 1
    for method in ("INVITE", "UPDATE"):
        number += 1
        answer = caller.request(method, number, body(caller.ip, caller.port))
        assert answer.status == 200, edge.sip_server.tail()
        _asks_the_relay(edge, answer.body)
        _asks_the_relay(edge, callee.requests[-1].body if callee.requests[-1].method != "ACK" else callee.requests[-2].body)
    late = caller.request("INVITE", number + 1)  # a refresh without an offer: the callee's comes in the 200
    assert late.status == 200
    _asks_the_relay(edge, late.body)
    assert caller.request("INFO", number + 2).status == 200
    assert "INFO" in [request.method for request in callee.requests]
    # The caller is not asked to answer: what counts is what arrives.
    deadline = time.monotonic() + 30
    caller.sip.settimeout(0.5)
    arrived = {"INVITE": "", "UPDATE": "", "INFO": ""}
    for position, (method, text) in enumerate((("UPDATE", body(callee.ip, callee.port)), ("INFO", ""))):
        answer = _request_and_answer(caller, callee, method, 10 + position, text, arrived)
        assert answer == 200 and time.monotonic() < deadline, edge.sip_server.tail()
    _asks_the_relay(edge, arrived["UPDATE"])
    assert caller.hang_up(20) == 200
    assert callee.requests[-1].method == "BYE"
    while any(not view["ended"] for view in edge.calls()):
        assert time.monotonic() < deadline, f"the relay was not told of the BYE: {edge.calls()}"
        time.sleep(0.1)


def _request_and_answer(caller: Caller, callee: Callee, method: str, number: int, text: str, arrived: dict[str, str]) -> int:
    """A request of the callee, which the caller answers with 200. The status that the callee gets."""

    def serve() -> None:
        while True:
            data, source = caller.sip.recvfrom(65535)
            request = Message.parse(data)
            if request.method != method:
                continue
            arrived[method] = request.body
            lines = ["SIP/2.0 200 OK", *(f"{name}: {value}" for name, value in request.headers if name in ("via", "from", "to", "call-id", "cseq", "record-route"))]
            reply = body(caller.ip, caller.port) if text else ""
            lines += [*(["content-type: application/sdp"] if text else []), f"content-length: {len(reply)}", "", reply]
            caller.sip.sendto("\r\n".join(lines).encode(), source)
            return

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    status = callee.request(method, number, text).status
    serving.join(5)
    return status


def _commands(edge: Edge) -> dict[str, int]:
    """The commands so far that concern calls."""
    return {name: count for name, count in edge.status()["commands"].items() if name in ("U", "L", "D", "offer", "answer", "delete")}


def test_without_the_right_signature_nothing_passes(scene: Scene) -> None:
    """No signature, another one, another call's parameters, an old call's: 481, and the callee and the relay see nothing."""
    edge, caller, callee = scene
    before, commands = len(callee.requests), _commands(edge)
    changes = {
        "none": lambda route: re.sub(r";sig=\w+", "", route),
        "another": lambda route: re.sub(r";sig=\w", lambda found: ";sig=" + ("0" if found[0][-1] != "0" else "1"), route),
        "none of the parameters": lambda route: re.sub(r";(sig|since|sides|families)=\w+", "", route),
        "a conference": lambda route: re.sub(r";(sides|families)=\w+", r";\1=conf", route),
        "other sides": lambda route: re.sub(r";(sides|families)=(.)(.)", lambda found: f";{found[1]}={'e' if found[2] == 'i' else '6' if found[2] == '4' else 'i'}{found[3]}", route),
        "later": lambda route: re.sub(r";since=\d", ";since=9", route),
        "the other direction": lambda route: re.sub(r";ftag=\w+", ";ftag=callee", route),
    }
    number = 1
    for name, change in changes.items():
        for method in ("INVITE", "UPDATE", "INFO", "BYE"):
            number += 1
            assert caller.request(method, number, body(caller.ip, caller.port) if method != "BYE" else "", change).status == 481, (name, method)
    assert [request.method for request in callee.requests[before:] if request.method != "ACK"] == []
    assert _commands(edge) == commands
    assert caller.hang_up(number + 1) == 200


@pytest.mark.parametrize("relay", ["rtpproxy", "rtpengine"])
@pytest.mark.parametrize("server", ["kamailio", "opensips"])
def test_a_secret_that_was_never_changed_stops_the_start(tmp_path: Path, server: str, relay: str) -> None:
    """The log says what to replace."""
    need(server, relay)
    with Topology("e2e") as topology:
        edge = Edge(topology, tmp_path, server, relay, data_plane=False)
        text = edge.sip_server_config()
        assert "change-this-secret" not in text
        path = tmp_path / f"{server}.cfg"
        path.write_text(text.replace("b0kJ2mZq8RtVw5Xy1Ls9", "change-this-secret"))
        edge.sip_server.start()
        assert edge.sip_server.wait(60) != 0
        assert "was never changed: replace it" in edge.sip_server.log.read_text()
