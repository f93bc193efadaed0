"""The relay gets the session description of a call however its body is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.needs import need
from tests.lab.phone import Callee, Caller, body
from tests.lab.processes import Edge
from tests.lab.topology import EDGE_IP, Topology

pytestmark = [pytest.mark.e2e, pytest.mark.netns]


@pytest.mark.parametrize("relay", ["rtpproxy", "rtpengine"])
@pytest.mark.parametrize("server", ["kamailio", "opensips"])
def test_types_of_bodies(tmp_path: Path, server: str, relay: str) -> None:
    """Each INVITE reaches the callee with the relay's address; other parts of a multipart body stay."""
    need(server, relay)
    with Topology("e2e") as topology, Edge(topology, tmp_path, server, relay, data_plane=False) as edge:
        callee = Callee(topology)
        try:
            for content_type in ("application/sdp;charset=utf-8", "Application/SDP", "multipart/mixed;boundary=b", 'Multipart/Mixed; boundary="b"'):
                caller = Caller(topology)
                caller.content_type, location = content_type, "<presence/>"
                text = body(caller.ip, caller.port)
                if "boundary" in content_type:
                    text = f"--b\r\nContent-Type: application/pidf+xml\r\n\r\n{location}\r\n--b\r\nContent-Type: application/sdp\r\n\r\n{text}\r\n--b--\r\n"
                callee.requests.clear()
                try:
                    assert caller.call(text) == 200
                    assert f"c=IN IP4 {EDGE_IP}" in callee.requests[0].body, (content_type, edge.sip_server.tail())
                    assert ("boundary" in content_type) == (location in callee.requests[0].body)
                    caller.hang_up()
                finally:
                    caller.close()
        finally:
            callee.close()
