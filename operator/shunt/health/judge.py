"""The judgement: facts in, findings out. A pure function.

A finding needs evidence. What the agent would have to tell, and does not, is unknown and never "ok". Least counts are such that a single call, the start of calls, and
their end give no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shunt.health.facts import Agent, Facts, Flow, Problem, Setup, Signalling, Unknown
from shunt.health.finding import CODES, Finding, Judgement

_LEAST_PACKETS = 100
"""Packets that say something: two seconds of one stream of speech."""
_LEAST_RATE = 5.0
"""Packets a second that say something: less are RTCP, keep-alives, and first packets to a neighbour that is being resolved."""
_STREAM_RATE = 400.0
"""Packets a second that a stream on the relay may have there, both its RTP and RTCP, video included."""
_OFFER_PACKETS = 300
"""Packets that the relay may count while a new call is learned, of both parties: seconds of early media."""
_LEAST_CALLS = 2
_LEAST_OFFERS = 3
_STEP_S = 1.0
_OWN_CODES = frozenset({"events-missing", "events-unreachable", "events-rebuilding", "records-lost", "records-waiting", "position-not-kept", "clock-stepped", "agent-unreachable"})
"""Codes that need no word of the agent."""
_OF_PLANE = ("xdp-missing", "xdp-loopback", "xdp-generic", "past-data-plane", "unrouted", "too-big", "host-policy", "table-full")
"""Codes of a data plane that is there."""

_REMEDIES = {
    "relay-down": "See whether it runs, and whether a packet filter drops commands to its control socket or its replies.",
    "data-plane-down": "See `systemctl status shunt-softswitch`: installed entries keep forwarding, new calls stay on the relay.",
    "no-active-agent": "See `systemctl status shunt-agent` on both hosts, and whether Redis answers.",
    "switch-not-set-up": "See `systemctl status shunt-switch` on the switch, or run p4/bfrt_python/setup.py there.",
    "mixer-down": "See `systemctl status shunt-mixer`.",
    "cpu-port": "Correct data_plane.cpu_interface, or the switch's port.",
    "hep-failed": "See the agent's log: another program may have the port of hep.listen.",
    "journal-failed": "Free space or correct its permissions: calls continue, but a restart of the agent would lose them.",
    "events-waiting": "Free space or correct its permissions: waiting events and their call records are written then.",
    "events-dropped": "Free space or correct its permissions: history and records lack the lost events.",
    "agent-problem": "See the agent's log.",
}


def judge(facts: Facts) -> Judgement:
    """What is wrong, the worst first, and what is not known."""
    found = list(_of_own(facts))
    unknown: dict[str, str] = {}
    agent = facts.agent
    if isinstance(agent, Unknown):
        unknown = {code: f"the agent does not answer: {agent.reason}" for code in CODES if code not in _OWN_CODES}
    else:
        found += _of_agent(agent, facts.setup, facts.signalling)
        unknown |= _not_told(agent, facts.setup)
    order = {code: place for place, code in enumerate(CODES)}
    return Judgement(tuple(sorted(found, key=lambda finding: order[finding.code])), unknown)


def _not_told(agent: Agent, setup: Setup) -> dict[str, str]:
    if not setup.data_plane or agent.role == "standby":
        return {}
    if not agent.connected:
        return dict.fromkeys(_OF_PLANE, "the data plane is not connected")
    found: dict[str, str] = {}
    if agent.interfaces is None:
        found |= dict.fromkeys(("xdp-missing", "xdp-loopback", "xdp-generic"), "the data plane does not report its interfaces")
    if agent.flow is None or agent.flow.relay is None or agent.flow.plane is None:
        found["past-data-plane"] = "packets of data plane and relay have not been counted twice yet" if agent.flow is None else "a relay or the data plane does not report its packets"
    for code, count in (("unrouted", agent.flow and agent.flow.unrouted), ("too-big", agent.flow and agent.flow.too_big)):
        if count is None:
            found[code] = "the data plane's counters have not been read twice yet"
    if agent.silent_calls is None:
        found["nothing-arrives"] = "the calls could not be read"
    return found


def _of_own(facts: Facts) -> Iterator[Finding]:
    own = facts.own
    if isinstance(facts.agent, Unknown):
        yield Finding(
            "agent-unreachable",
            "agent",
            f"the agent does not answer: {facts.agent.reason}",
            "See `systemctl status shunt-agent` and its log: offloaded calls continue; new calls need the SIP server's backup relay.",
        )
    if own.rebuilding:
        yield Finding("events-rebuilding", "events", "the history is being read from the agent's event log", "Wait: earlier calls are not in the history yet.")
    elif own.events_error and not isinstance(facts.agent, Unknown):
        yield Finding("events-unreachable", "events", f"the agent's events do not arrive: {own.events_error}", "See the operator daemon's log: history and records are not updated meanwhile.")
    for gap in own.gaps:
        yield Finding("events-missing", "events", gap, "History and records of that time may be incomplete; see the agent's log of that time.")
    if own.records_lost:
        yield Finding(
            "records-lost",
            "call records",
            f"{own.records_lost} call records are lost in total, the latest within the last hour",
            "See the records of kind lost in the files of cdr: they have the number and the time.",
        )
    if own.records_error:
        yield Finding("records-waiting", "call records", f"call records cannot be written: {own.records_error}", "Free space or correct the permissions: waiting records are written then.")
    if own.position_error:
        yield Finding("position-not-kept", "events", own.position_error, "Free space or correct the permissions of operator.state_dir.")
    if abs(own.clock_step_s) >= _STEP_S:
        yield Finding(
            "clock-stepped",
            "clock",
            f"the clock was set {'forwards' if own.clock_step_s > 0 else 'backwards'} by {abs(own.clock_step_s):.0f} s: earlier and later times in history, records and log cannot be compared",
            "Let chronyd or ntpd slew the clock, and start it before the daemons.",
        )


def _of_agent(agent: Agent, setup: Setup, signalling: Signalling) -> Iterator[Finding]:
    for problem in agent.problems:
        if problem.code not in ("relay-down", "draining"):
            yield _named(problem, setup)
    for relay in agent.relays:
        if not relay.alive:
            yield Finding("relay-down", f"relay {relay.name}", f"relay {relay.name} ({relay.address}) does not answer{f': {relay.error}' if relay.error else ''}", _REMEDIES["relay-down"])
    if agent.draining is not None:
        yield Finding("draining", "agent", "the agent drains: no new stream is offloaded", "`shunt drain nothing` ends it.")
    if agent.role == "standby":
        return
    yield from _of_signalling(setup, signalling)
    if (count := agent.streams.get("outside-media-ranges", 0)) > 0:
        example = agent.examples.get("outside-media-ranges", "")
        yield Finding(
            "outside-media-ranges",
            "relays[].media",
            f"{_streams(count)} on a relay port that no configured media range has{f' ({example})' if example else ''}: the data plane ignores it",
            "Make relays[].media agree with the relay's address and ports (rtpproxy -l, -m, -M), and restart the agent.",
        )
    if agent.silent_calls is not None and agent.silent_calls >= _LEAST_CALLS and 2 * agent.silent_calls >= agent.calls:
        yield Finding(
            "nothing-arrives",
            "media ports",
            f"in {agent.silent_calls} of {agent.calls} calls no packet arrives from either party, neither at the data plane nor at the relay",
            "Look before this host: a packet filter or route that drops media, or an address in the SDP that leads elsewhere.",
        )
    if setup.data_plane and agent.connected:
        yield from _of_plane(agent, setup)


def _named(problem: Problem, setup: Setup) -> Finding:
    """What the agent says, with the file's name where it is about a file."""
    cause = problem.message
    if problem.code == "journal-failed" and setup.journal:
        cause = f"the journal {setup.journal} cannot be written: {cause}"
    elif problem.code in ("events-dropped", "events-waiting") and setup.events:
        cause = f"the agent's event log {setup.events}: {cause}"
    elif problem.code == "data-plane-down":
        cause = f"data plane {cause}"
    code = problem.code if problem.code in CODES else "agent-problem"
    return Finding(code, problem.code.partition("-")[0] if code == problem.code else problem.code, cause, _REMEDIES.get(code, _REMEDIES["agent-problem"]))


def _of_signalling(setup: Setup, said: Signalling) -> Iterator[Finding]:
    if said.past >= _LEAST_CALLS and 2 * said.past >= said.answered:
        yield Finding(
            "commands-missing",
            "SIP server",
            f"SIP copies show {said.past} of {said.answered} answered calls with media for which no command came: the SIP server bypasses the agent",
            "Name the agent's socket first among the SIP server's relay sockets, and the SIP server in control.allow.",
        )
    if setup.hep and said.seconds is not None and said.offers >= _LEAST_OFFERS and said.copies == 0:
        yield Finding(
            "hep-missing",
            "SIP server",
            f"{said.offers} offers came by the control socket and no SIP copy: `find` and the SIP of `history` are empty, and sources are learned more slowly",
            "Let the SIP server's tracer send HEP to hep.listen, and name its address in hep.allow.",
        )


def _streams(count: int) -> str:
    return f"{count} stream{' is' if count == 1 else 's are'}"


def _of_plane(agent: Agent, setup: Setup) -> Iterator[Finding]:
    interfaces = agent.interfaces or ()
    missing = [interface.name for interface in interfaces if interface.mode not in ("native", "generic")]
    if agent.interfaces is not None and not interfaces:
        missing = list(setup.interfaces)
    for name in missing:
        yield xdp_missing(name)
    if interfaces and all(interface.name == "lo" for interface in interfaces):
        yield Finding(
            "xdp-loopback",
            "softswitch.interfaces",
            "the softswitch is on lo alone: packets of phones never meet its program, and the relay carries them",
            "List the interfaces where media arrives in softswitch.interfaces.",
        )
    generic = [interface.name for interface in interfaces if interface.mode == "generic" and interface.name != "lo"]
    if generic and setup.mode != "generic":
        yield Finding(
            "xdp-generic", ", ".join(generic), f"generic XDP on {', '.join(generic)}: each packet costs more CPU time", "`shunt doctor` says why; `mode: native` makes it an error at the start."
        )
    for code, phrase in (
        ("host-policy", "on the relay because IPsec, NAT, a packet filter or a routing rule of this host applies to"),
        ("table-full", "on the relay because the relay table is full for"),
    ):
        if (count := agent.streams.get(code, 0)) > 0:
            remedy = "`shunt calls --reason host-policy` and `shunt why CALL-ID` name the policy; exclude media from it." if code == "host-policy" else "Raise softswitch.capacity (see sizing)."
            yield Finding(code, "output path" if code == "host-policy" else "relay table", f"{_streams(count)} {phrase} {'it' if count == 1 else 'them'}", remedy)
    if agent.flow is not None:
        yield from _of_flow(agent, agent.flow, bool(missing))


def _of_flow(agent: Agent, flow: Flow, is_missing: bool) -> Iterator[Finding]:
    def many(count: int | None) -> bool:
        return count is not None and count >= _LEAST_PACKETS and count >= _LEAST_RATE * flow.seconds

    if many(flow.unrouted):
        example = agent.examples.get("unrouted", "")
        yield Finding(
            "unrouted",
            example or "routes",
            f"{flow.unrouted} packets in {flow.seconds:.0f} s had no next hop{f' to {example}' if example else ''}: the data plane passed them to the relay",
            "Look at `ip route get ADDRESS` and `ip neigh` on this host for that party's address.",
        )
    if many(flow.too_big):
        yield Finding(
            "too-big",
            "MTU",
            f"{flow.too_big} packets in {flow.seconds:.0f} s were larger than the MTU of their output interface: the data plane passed them to the relay",
            "Give all interfaces of media the same MTU.",
        )
    if flow.relay is None or flow.plane is None or is_missing:
        return
    explained = (flow.unrouted or 0) + (flow.too_big or 0) + _STREAM_RATE * flow.seconds * flow.on_relay + _OFFER_PACKETS * flow.offers
    beyond = flow.relay - explained
    if agent.streams.get("offloaded", 0) > 0 and many(int(beyond)) and 10 * flow.relay >= flow.plane:
        yield Finding(
            "past-data-plane",
            "data plane",
            f"relays counted {flow.relay} packets in {flow.seconds:.0f} s, the data plane {flow.plane}, more than the streams on relays explain: packets of offloaded streams bypass the data plane",
            "Find the interface where they arrive (`tcpdump -i any udp port PORT`): it needs the program, and no other program or filter before it.",
        )


def xdp_missing(name: str) -> Finding:
    """An interface of the softswitch without its program."""
    return Finding(
        "xdp-missing",
        name,
        f"{name} has no program of the softswitch now: packets that arrive there bypass the data plane, and the relay carries them",
        f"`ip -details link show {name}` shows what is attached; restart the softswitch to attach it again: calls continue.",
    )


def dated(judgement: Judgement, since: dict[tuple[str, str], float], now: float) -> Judgement:
    """The same with how long each finding has been there. since: when each began, by code and subject; kept here from judgement to judgement."""
    names = {(finding.code, finding.subject) for finding in judgement.findings}
    for name in [name for name in since if name not in names]:
        del since[name]
    findings = tuple(replace(finding, since_s=int(now - since.setdefault((finding.code, finding.subject), now))) for finding in judgement.findings)
    return Judgement(findings, judgement.unknown)
