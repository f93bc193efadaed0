"""Any one process is killed in mid-call: established media goes on, and what comes after is in order again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e.calls import Lab, Outcome, await_clean, place
from tests.lab.processes import Process

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# Long enough for any process to be started again before the call is hung up, as a rule.
TALK_MS = 5000
# Media of a call that went on to its end: 50 packets/s each way, less what a busy machine's phones leave out.
ENOUGH = TALK_MS / 20 / 2


def _kill(process: Process) -> None:
    process.kill()
    assert not process.alive


def _assert_unharmed(outcome: Outcome) -> None:
    packets = outcome.packets
    assert outcome.call.how == "BYE by caller"
    assert len(packets.directions) == 2
    assert packets.lost == 0, f"lost packets: {packets.directions + packets.rtcp}"
    assert all(d.sent >= ENOUGH for d in packets.directions), packets.directions


def _offloaded_again(lab: Lab) -> None:
    """Place calls until one is offloaded: a SIP server that met no agent asks the relay for some seconds (rtpproxy_disable_tout)."""
    deadline = time.monotonic() + 60
    while True:
        outcome = place(lab, "uac_call", "uas_answer")
        await_clean(lab)
        if outcome.seen or time.monotonic() > deadline:
            assert outcome.last_up
            return
        time.sleep(1)


def _killed_in_a_call(lab: Lab, victim: str, restart: Callable[[], None]) -> None:
    """Kill a process in mid-call and start it again a second later: this call is unharmed, and so is the next."""

    def during() -> None:
        _kill(getattr(lab.edge, victim))
        time.sleep(1.0)
        restart()

    _assert_unharmed(place(lab, "uac_call", "uas_answer", talk_ms=TALK_MS, during=during))
    await_clean(lab)
    _offloaded_again(lab)


def test_agent_killed(own_lab: Lab) -> None:
    """Entries stay while there is no agent; the next one finds call and entries again, and BYE clears them."""
    _killed_in_a_call(own_lab, "agent", own_lab.edge.start_agent)


def test_softswitch_killed(own_lab: Lab) -> None:
    """The program in the kernel forwards on; the next process takes it over with its entries."""
    _killed_in_a_call(own_lab, "softswitch", own_lab.edge.start_softswitch)


def test_softswitch_stalls(own_lab: Lab) -> None:
    """It stops until the agent gives its session up, and goes on: media does not notice, the BYE clears the table, and the status says so."""
    softswitch = own_lab.edge.softswitch

    def during() -> None:
        softswitch.signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 60
            while own_lab.edge.status()["data_plane"]["connected"]:
                assert time.monotonic() < deadline, "the agent did not notice that the softswitch answers nothing"
                time.sleep(0.2)
        finally:
            softswitch.signal(signal.SIGCONT)

    _assert_unharmed(place(own_lab, "uac_call", "uas_answer", talk_ms=12_000, during=during))
    await_clean(own_lab)
    assert own_lab.edge.status()["limits"]["tasks_restarted"] == 0
    _offloaded_again(own_lab)


def test_relay_killed(own_lab: Lab) -> None:
    """An offloaded call does not notice; the next relay serves the next call."""
    _killed_in_a_call(own_lab, "relay", own_lab.edge.start_relay)


def test_sip_server_killed(own_lab: Lab) -> None:
    """Media goes on without the SIP server. Its successor forgot the dialog, but routes the BYE by its Route header."""
    edge = own_lab.edge

    def during() -> None:
        _kill(edge.sip_server)
        edge.start_sip_server()

    outcome = place(own_lab, "uac_call", "uas_answer", talk_ms=TALK_MS, during=during)
    _assert_unharmed(outcome)
    await_clean(own_lab)


def test_without_agent_calls_use_the_relay(own_lab: Lab) -> None:
    """The relay is the backup: calls work, nothing is offloaded; once the agent is back, the next call is."""
    edge = own_lab.edge
    own_lab.register("bob4", 5071)
    _kill(edge.agent)
    outcome = place(own_lab, "uac_call", "uas_answer")
    # The relay alone: what it does with the first packets before it knows both parties is its own affair.
    assert len(outcome.packets.directions) == 2 and all(d.received >= 0.9 * d.sent > 0 for d in outcome.packets.directions)
    assert outcome.packets.offloaded == 0
    edge.start_agent()
    _offloaded_again(own_lab)


def test_full_table_leaves_calls_on_the_relay(own_lab: Lab) -> None:
    """Three entries, and a call needs four: what does not fit stays on the relay, says why, and nothing is lost."""
    edge = own_lab.edge
    edge.stop()
    config = edge.shunt_config()
    config["softswitch"]["capacity"] = 1
    edge.write_config(config)
    edge.start()
    edge.await_data_plane()  # an agent that is still starting may tell the data plane of a call too late for its first packets
    outcome = place(own_lab, "uac_call", "uas_answer", talk_ms=1500)
    assert len(outcome.packets.directions) == 2
    assert outcome.packets.lost == 0
    reasons = {s["reason"] for view in outcome.seen for s in outcome.streams(view)}
    assert "table-full" in reasons, reasons
    await_clean(own_lab)
