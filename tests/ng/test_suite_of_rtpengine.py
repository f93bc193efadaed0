"""rtpengine's own test-suite through the agent: it must come out as it does with rtpengine alone.

The suite is part of rtpengine's source and not of Debian's package. SHUNT_RTPENGINE_SUITE names a folder of the source of the installed version
(with `perl/` and `t/`). Its phones are in a namespace of their own, so the data plane sees their packets and carries what the agent offloads.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.processes import NG_PORT, ROOT, RTPENGINE_PORT, Edge, Process
from tests.lab.topology import Topology
from tests.lab.needs import need

_SUITE = os.environ.get("SHUNT_RTPENGINE_SUITE", "")
_EDGE = "198.18.1.1"
# The suite finds a packet's port in the name of a Unix socket that its preloaded library puts in place of the real one.
_PORT = (r"$addr =~ /\]:(\d+)/s or die;", "($addr) = unpack_sockaddr_in($addr); $addr =~ /(.*)/;")
_RELAY = ("203.0.113.1", "203.0.113.2", "2001:db8:4321::1", "2001:db8:4321::2")
_PHONES = [f"198.51.100.{number}" for number in range(1, 61)] + [f"198.51.101.{number}" for number in range(1, 5)]
# These phones read what they get, and must not see that a port of rtpengine is closed already.
_PHONES_FILTER = """flush ruleset
table inet quiet {
  chain input { type filter hook input priority 0; icmp type destination-unreachable drop; }
}"""
_START = re.compile(r"^autotest_start\(qw\((.*?)\)\)", re.DOTALL | re.MULTILINE)
# Those that start the daemon themselves; the others expect a Redis with calls in it.
_FILES = sorted(path.name for path in Path(_SUITE, "t").glob("*.pl") if _START.search(path.read_text(errors="replace"))) if _SUITE else []
# Long files run nothing on a host of another name.
_LONG = "eq 'moose' or exit()"
# It measures delays against the clock, and some of its checks fail on a busy machine.
_TIMED = "auto-daemon-tests-delay-timing.pl"
_RESULT = re.compile(r"^(ok|not ok) (\d+) - (.*)$")
_PERL = ("Bencode", "Crypt::Rijndael", "Digest::HMAC", "Digest::CRC", "Crypt::OpenSSL::RSA", "JSON", "Socket6", "IO::Multiplex", "Net::Interface")

Results = list[tuple[str, str]]
"""Each check's outcome and name, and how the file ended."""

pytestmark = pytest.mark.skipif(not _SUITE, reason="runs with SHUNT_RTPENGINE_SUITE")


class Bench:
    """Phones in one namespace, rtpengine in another."""

    def __init__(self, topology: Topology, work: Path) -> None:
        self.topology, self.work = topology, work
        # The suite asks for the name of a library that it would preload, in order to pretend addresses; here they are real.
        self.preload = work / "tests-preload.so"
        subprocess.run(["cc", "-shared", "-o", self.preload, "-x", "c", "/dev/null"], check=True)
        shutil.copytree(Path(_SUITE, "perl"), work / "perl")
        module = work / "perl" / "NGCP" / "Rtpengine" / "AutoTest.pm"
        module.write_text(module.read_text().replace(*_PORT))

    def alone(self, name: str) -> Results:
        """The results of a file of the suite with rtpengine alone."""
        with self._rtpengine(name, "alone"):
            return self._run(name, "alone", RTPENGINE_PORT)

    def through(self, name: str) -> Results:
        """The same through an agent with a data plane."""
        edge = Edge(self.topology, self.work / f"{name}-shunt", "kamailio", "rtpengine")
        shutil.rmtree(edge.work, ignore_errors=True)  # of a run before
        edge.work.mkdir()
        config = edge.shunt_config()
        config["control"] = {"ng": [f"udp:{_EDGE}:{NG_PORT}"], "allow": ["198.18.0.0/16", "198.51.100.0/23"]}
        config["relays"][0]["media"] = [{"address": address, "ports": "30000-65000"} for address in _RELAY]
        # Phones of the suite send one packet at once from addresses that no signalling names.
        config["learning"] = {**config.get("learning", {}), "first_packets": "any"}
        edge.write_config(config)
        try:
            with self._rtpengine(name, "shunt"):
                edge.start_softswitch()
                edge.start_agent()
                edge.await_data_plane()
                results = self._run(name, "shunt", NG_PORT)
                edge.agent.stop()
                assert edge.agent.wait(60) in (0, -signal.SIGTERM), edge.agent.tail()
                return results
        finally:
            edge.stop()

    @contextlib.contextmanager
    def _rtpengine(self, name: str, kind: str) -> Iterator[None]:
        words = shlex.split(_START.search((Path(_SUITE) / "t" / name).read_text()).group(1))  # type: ignore[union-attr]
        daemon = Process(self.topology, "edge", "rtpengine", ["rtpengine", *words], self.work / f"{name}-{kind}-rtpengine.log")
        daemon.start().await_listening("udp", RTPENGINE_PORT)
        try:
            yield
        finally:
            daemon.stop()

    def _run(self, name: str, kind: str, port: int) -> Results:
        env = {
            **os.environ, "LD_PRELOAD": str(self.preload), "RTPE_PRELOAD_TEST_ACTIVE": "1", "RTPE_TEST_NO_LAUNCH": "1",
            "RTPENGINE_HOST": _EDGE, "RTPENGINE_PORT": str(port),
        }  # fmt: skip
        text = Path(_SUITE, "t", name).read_text(errors="replace")
        host = "moose" if _LONG in text else "here"
        command = self.topology.enter("caller", "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec perl "-I$1" "$2"', host, str(self.work / "perl"), name)
        done = subprocess.run(command, cwd=Path(_SUITE, "t"), env=env, capture_output=True, text=True, errors="replace", timeout=1800)
        (self.work / f"{name}-{kind}.tap").write_text(done.stdout + done.stderr)
        found = [(match[1], match[3]) for line in done.stdout.splitlines() if (match := _RESULT.match(line))]
        # Above 127 it died; else it is the number of checks that failed, which are compared one by one.
        return [*found, ("end", "died" if done.returncode > 127 or not found else "")]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    need("rtpengine", "perl", "cc", "nft", "ethtool", "nsenter")
    missing = [module for module in _PERL if subprocess.run(["perl", f"-M{module}", "-e", "1"], capture_output=True).returncode]
    assert not missing, f"modules of Perl are not installed: {missing}"
    work = ROOT / "build" / "e2e" / "suite-of-rtpengine"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with Topology("suite") as topology:
        lines = [f"addr add {address} dev lo" + (" nodad" if ":" in address else "") for address in _RELAY]
        lines += ["route add 198.51.100.0/23 via 198.18.1.2"]
        topology.run("edge", "ip", "-batch", "-", stdin="\n".join(lines))
        topology.run("caller", "ip", "-batch", "-", stdin="\n".join(f"addr add {address} dev lo" for address in _PHONES))
        topology.run("caller", "nft", "-f", "-", stdin=_PHONES_FILTER)
        yield Bench(topology, work)


@pytest.mark.parametrize("name", _FILES)
def test_the_suite_comes_out_as_with_rtpengine_alone(bench: Bench, name: str) -> None:
    """Its phones wait for packets by the clock, so that a check may fail on a busy machine: what holds in one of three runs holds."""
    alone, through = bench.alone(name), bench.through(name)
    assert len(alone) > 1, "the file of the suite ran no check"
    for _ in range(2):
        if _comparable(name, through) == _comparable(name, alone):
            break
        alone, through = _better(alone, bench.alone(name)), _better(through, bench.through(name))
    assert _comparable(name, through) == _comparable(name, alone)


def _comparable(name: str, results: Results) -> Results:
    """Where the suite measures time, only which checks it came to."""
    return [("", check) if name == _TIMED else (outcome, check) for outcome, check in results]


def _better(former: Results, later: Results) -> Results:
    """A run that stopped early counts for nothing beside a longer one."""
    if len(former) != len(later):
        return max(former, later, key=len)
    return [one if one[0] == "ok" else other for one, other in zip(former, later, strict=True)]
