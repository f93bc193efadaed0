"""`shunt capture` of a real call: tshark reads the file, both sides of every stream are complete, and the call's SIP is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.calls import Lab, await_clean, place
from tests.lab.needs import need
from tests.lab.processes import ROOT

need("tshark")


def _tshark(path: Path, *argv: str) -> list[list[str]]:
    done = subprocess.run(["tshark", "-n", "-r", str(path), "-o", "rtp.heuristic_rtp:TRUE", *argv], capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def _begin(lab: Lab, target: str, path: Path, *argv: str) -> subprocess.Popen[str]:
    command = lab.topology.enter("edge", sys.executable, "-m", "shunt.cli.main", "capture", target, "-w", str(path), "--admin", str(lab.edge.admin), "--json", *argv)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "operator")})


def test_two_captures_of_one_call(lab: Lab) -> None:
    """A filter from before the call, and its Call-ID while it lasts: RTP without a gap on both sides, nothing malformed."""
    files = [lab.work / "filter.pcapng", lab.work / "call.pcapng"]
    running = [_begin(lab, "call=", files[0], "--for", "5m")]

    def during() -> None:
        running.append(_begin(lab, lab.edge.calls()[0]["call_id"], files[1], "--headers-only"))

    outcome = place(lab, "uac_call", "uas_answer", talk_ms=5000, during=during)
    _, words = running[1].communicate(timeout=60)
    assert running[1].returncode == 0, words
    assert json.loads(words.splitlines()[-1])["ended"] == "the call has ended", words
    running[0].terminate()
    _, words = running[0].communicate(timeout=60)
    assert running[0].returncode == 0, words
    for path in files:
        assert _tshark(path, "-Y", "_ws.malformed") == []
        rtp = _tshark(path, "-Y", "rtp", "-T", "fields", "-e", "frame.interface_name", "-e", "rtp.ssrc", "-e", "rtp.seq", "-e", "ip.src", "-e", "ip.dst")
        by_side: dict[tuple[str, str], list[int]] = {}
        for name, _, seq, _, _ in rtp:
            *stream, side = name.split()
            by_side.setdefault((" ".join(stream), side), []).append(int(seq))
        streams = {stream for stream, _ in by_side}
        assert len(streams) == 2, by_side.keys()
        for stream in streams:
            came, left = by_side[stream, "came"], by_side[stream, "left"]
            assert came == left and len(came) > 20, (stream, len(came), len(left))
            assert came == list(range(came[0], came[0] + len(came))), f"{path.name}: {stream} has a gap"
        sip = {row[0] for row in _tshark(path, "-Y", "sip", "-T", "fields", "-e", "sip.Method")}
        assert {"INVITE", "ACK"} <= sip, sip
    sizes = [{int(row[0]) for row in _tshark(path, "-Y", "rtp && frame.interface_name contains came", "-T", "fields", "-e", "frame.cap_len")} for path in files]
    assert max(sizes[1]) == 54 < max(sizes[0]), "Ethernet, IP, UDP and RTP headers"
    notes = [event["what"] for event in outcome.history if event["what"].startswith("capture")]
    assert notes.count("capture-begun") == 2, notes
    await_clean(lab)


def test_refusals(lab: Lab) -> None:
    for target, code, words in (("nobody@nowhere", 1, "no call with Call-ID"), ("state=offloaded", 2, "neither a Call-ID"), ("address=none", 2, "neither a Call-ID")):
        process = _begin(lab, target, lab.work / "refused.pcapng")
        _, found = process.communicate(timeout=60)
        assert process.returncode == code and words in found, found
