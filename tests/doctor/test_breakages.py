"""What breaks on this host, one after the other: each tool has the same cause in the same words, or says that it does not know. None blames a party."""

from __future__ import annotations

import concurrent.futures
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from shunt.health.finding import CODES
from tests.doctor.bench import Bench, Said, bench, pin_foreign_program
from tests.lab.needs import need
from tests.lab.processes import RELAY_PORT
from tests.lab.topology import BPF, CALLEE_IP, EDGE_IP, run

pytestmark = pytest.mark.netns
Act = Callable[[Bench], object]
BLAMES = re.compile(r"Traceback|has sent nothing|it stopped sending|were lost before they arrived|No audio either way|One-way audio|on its side|sent nothing|KeyError")
"""What is false while both parties send and the host is broken."""


@dataclass(frozen=True)
class Row:
    """breaks, mends: what is done; codes: the findings; words: of a cause; alert: which fires when it stays so; log: of the agent or softswitch; answers: whether the agent
    does; history, why: words of these tools, of a call whose parties send; silent: no party's media arrives; others: codes that may be found besides."""

    breaks: Act
    mends: Act
    codes: set[str]
    words: str = ""
    alert: str = ""
    log: tuple[str, str] | None = None
    answers: bool = True
    history: str = ""
    why: str = ""
    silent: bool = False
    others: frozenset[str] = frozenset()


def _signal(name: str, number: int) -> Act:
    return lambda made: getattr(made.lab, name).signal(number)


def _kill(name: str) -> Act:
    return lambda made: getattr(made.lab, name).kill()


def _host(*commands: str) -> Act:
    def do(made: Bench) -> None:
        for command in commands:
            made.host(*command.split())

    return do


def _table(family: str, chain: str) -> str:
    """A table of nftables with one chain."""
    return f"table {family} broken {{\n chain c {{\n{chain}\n }}\n}}\n"


def _filter(rule: str) -> tuple[Act, Act]:
    def breaks(made: Bench) -> None:
        made.topology.run("edge", "nft", "-f", "-", stdin=_table("inet", f"type filter hook input priority 0; {rule}"))

    return breaks, _host("nft delete table inet broken")


def _detach(made: Bench) -> None:
    for path in made.edge.pin_dir.rglob("link_*"):
        run("bpftool", "link", "detach", "pinned", str(path))


def _detach_one(made: Bench) -> None:
    (index,) = re.findall(r"^(\d+):", made.host("ip", "-o", "link", "show", "e-caller"))
    for path in made.edge.pin_dir.rglob(f"link_{index}_*"):
        run("bpftool", "link", "detach", "pinned", str(path))


def _foreign(made: Bench) -> None:
    _detach_one(made)
    pin_foreign_program(BPF / "foreign")
    made.host("bpftool", "net", "attach", "xdp", "pinned", str(BPF / "foreign"), "dev", "e-caller")


def _no_foreign(made: Bench) -> None:
    made.host("bpftool", "net", "detach", "xdp", "dev", "e-caller")
    (BPF / "foreign").unlink()
    made.restart_softswitch()


def _restart_softswitch(made: Bench) -> None:
    made.restart_softswitch()


def _disk_full(made: Bench) -> None:
    name = made.call()
    made.fill_disk()
    for _ in range(3):
        made.call()
    made.hang_up(name)


def _past_agent(made: Bench) -> None:
    for _ in range(3):
        made.call(port=RELAY_PORT)


def _no_copies(made: Bench) -> None:
    for _ in range(4):
        made.call(hep=False)


def _clock(seconds: float) -> Act:
    return lambda made: made.step.write_text(str(seconds))


def _drain(stop: str) -> Act:
    def do(made: Bench) -> None:
        code, said = made.command_line("drain", stop, *([] if stop == "nothing" else ["--yes"]))
        assert code == 0, said

    return do


def _media(ports: str) -> dict[str, object]:
    return {"relays": [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": [{"address": EDGE_IP, "ports": ports}], "ttl": 60, "symmetric": True}]}


def _other_ports(made: Bench) -> None:
    made.lab.agent.stop()
    made.restart_softswitch()  # it keeps the ranges of agents before
    made.restart_agent(**_media("20000-21000"))
    made.call()
    made.call()


def _full_table(made: Bench) -> None:
    made.restart_softswitch(capacity=4)
    made.call()


def _upstream(made: Bench, block: bool) -> None:
    for host in ("caller", "callee"):
        if block:
            made.topology.run(host, "nft", "-f", "-", stdin=_table("inet", "type filter hook output priority 0; udp dport 35000-65000 drop;"))
        else:
            made.topology.run(host, "nft", "delete", "table", "inet", "broken")
    if block:
        made.call()
        made.call()
        made.call()


CALLEE_NET = "198.18.2.0/24"
PLANE_DOWN = dict(codes={"data-plane-down"}, words="data plane ", alert="ShuntDataPlaneDown", history="data plane ", log=("agent", "data plane unix:"))
NO_HOP = dict(codes={"unrouted"}, words=f"no next hop to {CALLEE_IP}", alert="ShuntUnrouted", history="next hop", why="no next hop")
RELAY_DOWN = dict(codes={"relay-down"}, words="relay local (udp:127.0.0.1:22222) does not answer", alert="ShuntRelayDown", log=("agent", "does not answer"))
AGENT_DOWN = dict(codes={"agent-unreachable"}, words="the agent does not answer", alert="ShuntAgentDown", answers=False)
ROUTE_BACK = _host(f"ip route replace {CALLEE_NET} dev e-callee src 198.18.2.1 proto kernel scope link")

BREAKAGES: dict[str, Row] = {
    "relay killed": Row(_kill("relay"), lambda made: made.lab.start_relay(), **RELAY_DOWN),  # type: ignore[arg-type]
    "relay hung": Row(_signal("relay", signal.SIGSTOP), _signal("relay", signal.SIGCONT), **RELAY_DOWN),  # type: ignore[arg-type]
    "relay's control socket blocked": Row(*_filter(f"udp dport {RELAY_PORT} drop;"), **RELAY_DOWN),  # type: ignore[arg-type]
    "firewall before the host": Row(
        partial(_upstream, block=True),
        partial(_upstream, block=False),
        {"nothing-arrives"},
        "no packet arrives from either party",
        "ShuntFailing",
        silent=True,
        why="no packet arrives",
        history="no packet arrives",
    ),
    "firewall on the host": Row(*_filter(f"ip daddr {EDGE_IP} udp dport 35000-65000 drop;"), set(), history="Media flows both ways; the data plane carries it."),
    "route missing": Row(_host(f"ip route del {CALLEE_NET} dev e-callee"), ROUTE_BACK, **NO_HOP),  # type: ignore[arg-type]
    "route is a blackhole": Row(_host(f"ip route add blackhole {CALLEE_IP}/32"), _host(f"ip route del blackhole {CALLEE_IP}/32"), **NO_HOP),  # type: ignore[arg-type]
    "next hop is no neighbour": Row(_host(f"ip route add {CALLEE_IP}/32 via 198.18.2.77"), _host(f"ip route del {CALLEE_IP}/32 via 198.18.2.77"), **NO_HOP),  # type: ignore[arg-type]
    "MTU too small": Row(
        _host(f"ip route add {CALLEE_IP}/32 dev e-callee mtu 100"),
        _host(f"ip route del {CALLEE_IP}/32 dev e-callee"),
        {"too-big"},
        "larger than the MTU of their output interface",
        "ShuntTooBig",
        history="MTU",
        why="MTU",
    ),
    "an interface is down": Row(
        _host("ip link set e-callee down"),
        _host("ip link set e-callee up", f"ip route replace {CALLEE_NET} dev e-callee src 198.18.2.1 proto kernel scope link"),
        {"unrouted"},
        "no next hop",
        "ShuntUnrouted",
        history="next hop",
        silent=True,
    ),
    "programs detached": Row(
        _detach, _restart_softswitch, {"xdp-missing"}, "has no program of the softswitch now", "ShuntFailing", history="has no program of the softswitch now", why="has no program"
    ),
    "one program detached": Row(
        _detach_one, _restart_softswitch, {"xdp-missing"}, "e-caller has no program of the softswitch now", "ShuntFailing", history="e-caller has no program", why="e-caller has no program"
    ),
    "program of somebody else": Row(
        _foreign, _no_foreign, {"xdp-missing"}, "e-caller has no program of the softswitch now", "ShuntFailing", history="e-caller has no program", why="e-caller has no program"
    ),
    "softswitch on lo": Row(
        lambda made: (made.restart_softswitch(interfaces=["lo"]), made.call()),
        _restart_softswitch,
        {"xdp-loopback"},
        "the softswitch is on lo alone",
        "ShuntFailing",
        history="on lo alone",
        why="on lo alone",
    ),
    "relay table full": Row(_full_table, _restart_softswitch, {"table-full"}, "the relay table is full", "ShuntTableFills"),
    "softswitch killed": Row(_kill("softswitch"), lambda made: made.edge.start_softswitch(), **PLANE_DOWN),  # type: ignore[arg-type]
    "softswitch hung": Row(_signal("softswitch", signal.SIGSTOP), _signal("softswitch", signal.SIGCONT), **PLANE_DOWN),  # type: ignore[arg-type]
    "relay uses other ports": Row(
        _other_ports,
        lambda made: made.restart_agent(),
        {"outside-media-ranges"},
        "on a relay port that no configured media range has",
        "ShuntMisconfigured",
        history="",
        others=frozenset({"past-data-plane"}),
    ),
    "agent killed": Row(_kill("agent"), lambda made: made.lab.start_agent(), **AGENT_DOWN),  # type: ignore[arg-type]
    "agent hung": Row(_signal("agent", signal.SIGSTOP), _signal("agent", signal.SIGCONT), **AGENT_DOWN),  # type: ignore[arg-type]
    "SIP server past the agent": Row(_past_agent, lambda made: None, {"commands-missing"}, "the SIP server bypasses the agent", "ShuntFailing"),
    "no SIP copies": Row(_no_copies, lambda made: made.call(), {"hep-missing"}, "and no SIP copy", ""),
    "disk full": Row(_disk_full, lambda made: made.empty_disk(), {"journal-failed", "events-waiting"}, "cannot be written", "ShuntJournalDown", log=("agent", "event log: ")),
    "clock set forwards": Row(_clock(3600.0), _clock(0.0), {"clock-stepped"}, "the clock was set forwards by 3600 s", "ShuntImpaired"),
    "draining": Row(_drain("offloads"), _drain("nothing"), {"draining"}, "no new stream is offloaded", "ShuntDraining"),
    "host policy": Row(
        lambda made: (made.topology.run("edge", "nft", "-f", "-", stdin=_table("ip", "type nat hook postrouting priority srcnat; oifname e-callee masquerade;")), made.call()),
        _host("nft delete table ip broken"),
        {"host-policy"},
        "on the relay because IPsec, NAT, a packet filter or a routing rule",
        "",
        others=frozenset({"past-data-plane"}),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need("nft", "bpftool", "promtool", "curl")
    with bench(tmp_path_factory.mktemp("broken")) as host:
        yield host


@pytest.mark.parametrize("name", BREAKAGES)
def test_every_tool_says_what_is_broken(made: Bench, name: str) -> None:
    row = BREAKAGES[name]
    call = made.ready()
    before, began = made.page("/metrics")[1], time.monotonic()
    logged = {process: len(getattr(made.lab, process).log.read_text()) for process in ("agent", "softswitch")}
    row.breaks(made)
    try:
        health = made.until_codes(row.codes) if row.codes else _later(made)
        said = made.ask(call)
        assert {one["code"] for one in health["findings"]} <= row.codes | row.others | {one["code"] for one in health["findings"] if one["code"].startswith(("events-", "records-"))}, health
        _compare(row, said)
        if row.alert:
            made.until_firing(row.alert, before, began)
        if row.log is not None:
            process, words = row.log
            assert words in getattr(made.lab, process).log.read_text()[logged[process] :]
    finally:
        row.mends(made)
        if row.silent:
            made.hang_up_all()  # what was lost then stays in their counts
    made.ready()


def _later(made: Bench) -> dict[str, object]:
    time.sleep(8)
    return made.health()


def _compare(row: Row, said: Said) -> None:
    """The tools' words against each other and the row."""
    findings = {one["code"]: one for one in said.health["findings"]}
    causes = [one["message"] for one in said.health["findings"] if one["code"] in row.codes]
    stems = [re.sub(r"\d+", "N", cause) for cause in causes]  # counts go on
    if row.words:
        assert any(row.words in cause for cause in causes), said.health
    fails = any(one["severity"] == "fail" for one in findings.values())
    assert said.status[0] == (1 if findings else 0), said.status
    status, doctor = (re.sub(r"\d+", "N", text) for text in (said.status[1], said.doctor[1]))
    for stem in stems:
        assert f"!! {stem}" in status, (stem, said.status[1])
        assert stem in doctor, (stem, said.doctor[1])
    assert said.readyz[0] == (503 if fails else 200), said.readyz
    for code, one in findings.items():
        if one["severity"] == "fail":
            assert f"{code}: {re.sub(r'[0-9]+', 'N', one['message'])}" in re.sub(r"(?<=: ).*", lambda found: re.sub(r"\d+", "N", found[0]), said.readyz[1]), (code, said.readyz)
    unknown = {one["code"] for one in said.health["unknown"]}
    for code in CODES:
        value = re.search(rf'^shunt_health_problem{{code="{code}",severity="\w+"}} (\S+)$', said.metrics, re.MULTILINE)
        assert (value is None) == (code in unknown and code not in findings), (code, value, unknown)
        if code in row.codes:
            assert value is not None and value[1] == "1.0", code
    for tool, text in said.texts().items():
        assert "Traceback" not in text, text
        if not row.silent:
            assert not BLAMES.search(text), (tool, text)
    assert row.history in said.history[1], said.history
    assert row.why in said.why[1], said.why
    if not row.answers:
        assert said.why[0] != 0 and "the agent does not answer" in said.why[1], said.why
        assert "the agent does not answer" in said.history[1], said.history
        assert "unknown" in said.doctor[1]


def test_a_phone_that_sends_to_a_wrong_port_is_no_fault_of_this_host(made: Bench) -> None:
    made.ready()
    name = made.call(wrong_port=True)
    deadline = time.monotonic() + 60
    words = ("One-way audio: the callee sends", "The caller sends to a wrong port")
    while not all(part in (said := made.ask(name)).history[1] for part in words) and time.monotonic() < deadline:
        time.sleep(0.5)
    try:
        assert all(part in said.history[1] for part in words), said.history
        assert "waiting-for-media" in said.why[1], said.why
        assert (said.status[0], said.readyz[0], said.health["findings"]) == (0, 200, []), said.health
        problems = made.command_line("calls", "--problems")
        assert problems[0] == 1 and name in problems[1], problems
    finally:
        made.hang_up(name)


@pytest.mark.parametrize("dead", [True, False])
def test_without_the_operator_daemon_every_command_says_that_it_is_away(made: Bench, dead: bool) -> None:
    call = made.ready()
    before = made.page("/metrics")[1]
    if dead:
        made.operator.kill()
    else:
        made.operator.signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            *answers, doctor = pool.map(lambda words: made.command_line(*words), [("status",), ("why", call), ("history", call), ("calls",), ("drain",), ("doctor", "-c", str(made.edge.config))])
        for code, text in answers:
            words = "no agent at http://127.0.0.1:8077: Connection refused" if dead else "no answer from the agent at http://127.0.0.1:8077 within 8 s"
            assert code == 3 and words in text and "Traceback" not in text, text
        assert re.search(r"unknown +health: the operator daemon, which compares calls, packets and programs, does not answer: ", doctor[1]), doctor
        assert "ShuntDown" in made.firing(before, "", 10.0)
    finally:
        if dead:
            made.start_operator()
        else:
            made.operator.signal(signal.SIGCONT)
    made.ready()
