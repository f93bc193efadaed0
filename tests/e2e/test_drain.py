"""A drained agent, and a relay that is dead, harm no call: media goes over the relay, or the call is refused with 503."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.calls import MEDIA, SIP_PORT, Lab, await_clean, place
from tests.lab.capture import Capture, Message
from tests.lab.needs import need
from tests.lab.processes import Edge, choose, work_folder
from tests.lab.sipp import Sipp
from tests.lab.topology import LabError, Topology

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# Each of the four shipped configurations.
CONFIGURATIONS = [(server, relay) for server in ("opensips", "kamailio") for relay in ("rtpproxy", "rtpengine")]


@pytest.fixture(params=CONFIGURATIONS, ids="-".join)
def shipped(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of one of the shipped configurations."""
    need("sipp", "tcpdump", "nft", "ethtool", "nsenter", *request.param)
    parts = choose(*request.param)
    work: Path = work_folder(request.node.name.replace("/", "-"))
    with Topology("e2e") as topology, Edge(topology, work, *parts) as edge:
        yield Lab(topology, edge, work)


def _assert_on_the_relay(lab: Lab, scenario: str) -> None:
    """A call of a phone behind NAT has media both ways, none of it in the data plane."""
    outcome = place(lab, scenario, "uas_answer", host="natcaller", talk_ms=1500)
    assert outcome.call.how == "BYE by caller"
    directions = outcome.packets.directions
    assert len(directions) == 2, directions
    assert all(d.received >= 0.9 * d.sent > 0 for d in directions), directions
    assert outcome.packets.offloaded == 0
    assert "draining" in {s["reason"] for view in outcome.seen for s in outcome.streams(view)}
    await_clean(lab)


def test_calls_behind_nat(shipped: Lab) -> None:
    """New calls go over the relay while the agent drains and after its restart, and are offloaded once draining has ended."""
    edge = shipped.edge
    edge.shunt("drain", "calls")
    for scenario in ("uac_call", "uac_reinvite", "uac_late_offer"):
        _assert_on_the_relay(shipped, scenario)
    edge.agent.kill()
    edge.start_agent()
    edge.await_data_plane()
    assert edge.status()["drain"]["stop"] == "calls"
    _assert_on_the_relay(shipped, "uac_call")
    edge.shunt("drain", "nothing")
    outcome = place(shipped, "uac_call", "uas_answer", host="natcaller")
    assert outcome.last_up and outcome.packets.lost == 0
    await_clean(shipped)


def _sdp_addresses(capture: Capture) -> set[str]:
    """Addresses in the SDP that a phone received."""
    return {address for message in capture.messages() if not message.out for address in re.findall(r"c=IN IP\d (\S+)", message.body)}


def _without_relay(lab: Lab, caller: str, own_port: int, callee: str) -> tuple[list[Message], list[Message]]:
    """One call of the phone behind NAT: what it and the callee received. Both scenarios have to end."""
    captures = [Capture(lab.topology, lab.work, name, full=True).start() for name in ("natcaller", "callee")]
    parts = (("callee", callee, SIP_PORT), ("natcaller", caller, own_port))
    phones = [Sipp(lab.topology, lab.work, host, scenario, sip_port=port, media_port=MEDIA[host], user="bob4", calls=1, talk_ms=30_000) for host, scenario, port in parts]
    try:
        for phone in phones:
            phone.start()
        phones[1].process.wait(60)
        if callee != "uas_silent":
            phones[0].process.wait(60)
    finally:
        for phone in phones:
            phone.stop()
        for capture in captures:
            capture.stop()
    at_caller, at_callee = ([message for message in capture.messages() if not message.out] for capture in captures)
    addresses = {found for message in at_caller + at_callee for found in re.findall(r"c=IN IP\d (\S+)", message.body)}
    assert not addresses, f"a phone was given addresses of another one: {addresses}"
    return at_caller, at_callee


def _refusals(lab: Lab) -> int:
    """INVITEs that the SIP server has refused because no relay took their offer."""
    return lab.edge.sip_server.log.read_text(errors="replace").count("it is refused with 503")


def test_no_relay(shipped: Lab) -> None:
    """With the relay dead an INVITE with an offer gets 503; a late offer gets its answer without SDP, and then a BYE. No phone gets the other's own addresses."""
    shipped.register("bob4", SIP_PORT)
    shipped.edge.relay.kill()
    at_caller, at_callee = _without_relay(shipped, "uac_no_relay", 5080, "uas_silent")
    assert {message.status for message in at_caller if message.status >= 200} == {503}
    assert _refusals(shipped) == 1, "a retransmitted INVITE was offered to the relay again"
    assert not any(message.method == "INVITE" for message in at_callee), "the callee was called"
    at_caller, at_callee = _without_relay(shipped, "uac_late_offer", 5082, "uas_answer")
    assert "BYE" in [message.method for message in at_caller], [message.start for message in at_caller]
    assert "BYE" in [message.method for message in at_callee], [message.start for message in at_callee]
    assert shipped.edge.sip_server.alive
