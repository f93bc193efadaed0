"""Many dial in by SIPp through a real SIP server, join and leave while others talk: every packet on the phones' wires is accounted for."""

from __future__ import annotations

import re
import shutil
import signal
import struct
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.conference_control.lab import Bridge, bridge, sip_server
from tests.conference_control.room import NEEDS as pytestmark, need
from tests.lab.processes import Process
from tests.lab.sipp import SCENARIOS, address
from tests.lab.topology import EDGE_IP, Topology

HOSTS = ("caller", "callee", "natcaller")
ROOMS, AT_ONCE, CALLS = 2, 14, 24  # rooms of each host's, its calls at one time, and in all
TIMEOUT_S = 5
JOINED_S, LATEST_S, LEAVING_S = 2.5, 6.0, 0.6  # from when two talk until they hear each other, half of them and all; before an end
BETWEEN = 100  # packets of all others in a third of a second, for a machine that has little time for who reads the counters
_HEADER = struct.Struct("<IIII")
_ROW = np.dtype([("time", "<f8"), ("out", "?"), ("port", "<u2"), ("relay", "<u2"), ("seq", "<u2"), ("ssrc", "<u4")])


class Wire:
    """A capture of all media at one host."""

    def __init__(self, topology: Topology, work: Path, host: str) -> None:
        self.host, self._path = host, work / f"{host}.pcap"
        argv = ["tcpdump", "-i", "eth0", "-n", "-Z", "root", "--time-stamp-precision=nano", "-B", "65536", "-s", "64", "-w", str(self._path), "udp and portrange 20000-20999"]
        self._process = Process(topology, host, f"tcpdump at {host}", argv, work / f"tcpdump-{host}.log").start()
        self._process.await_log("listening on")

    def stop(self) -> np.ndarray:
        """Every RTP packet, in order of time: time (s), out, port of the phone, port of the relay, seq, ssrc."""
        time.sleep(1.3)
        self._process.signal(signal.SIGINT)
        self._process.wait(10)
        assert re.search(r"\b0 packets dropped by kernel", self._process.tail()), "the capture is not complete"
        data, rows, at = self._path.read_bytes(), [], 24
        own = bytes(map(int, address(self.host).split(".")))
        while at < len(data):
            seconds, nanoseconds, size, _ = _HEADER.unpack_from(data, at)
            frame, at = data[at + 16 : at + 16 + size], at + 16 + size
            if frame[42] >> 6 == 2 and not 192 <= frame[43] <= 223:
                source, destination, seq, ssrc = struct.unpack_from("!HH", frame, 34) + struct.unpack_from("!H4xI", frame, 44)
                out = frame[26:30] == own
                rows.append((seconds + nanoseconds / 1e9, out, source if out else destination, destination if out else source, seq, ssrc))
        return np.array(rows, dtype=_ROW)


def sipp(room: Bridge, host: str, scenario: str, *more: str) -> Process:
    argv = [
        "sipp",
        "-sf",
        str(SCENARIOS / f"{scenario}.xml"),
        "-i",
        address(host),
        "-mi",
        address(host),
        "-nostdin",
        "-trace_err",
        "-error_file",
        str(room.work / f"{scenario}-{host}.err"),
        *more,
        f"{EDGE_IP}:5060",
    ]
    made = Process(room.topology, host, f"SIPp at {host}", argv, room.work / f"{scenario}-{host}.log", {"TERM": "dumb"})
    made.cwd = SCENARIOS
    return made.start()


def rooms_of(host: str) -> list[str]:
    """SIPp numbers its streams from the same SSRC in each process, so each has rooms to itself."""
    return [f"{host}{number}" for number in range(ROOMS)]


def check_host(packets: np.ndarray, rooms: dict[int, str], lost: int) -> tuple[list[float], int]:
    """Whoever hears somebody hears everything once and in order, from some time after both talk until one of them ends, but for what the
    wires have lost. (these times, packets).

    Phones are told apart by the relay ports that are theirs (SIPp has one port for all); rooms: by these.
    """
    sent = {int(relay): packets[packets["out"] & (packets["relay"] == relay)] for relay in np.unique(packets["relay"][packets["out"]])}
    assert sent.keys() == rooms.keys()
    by_ssrc: dict[int, int] = {}
    for relay, mine in sent.items():
        (ssrc,) = set(mine["ssrc"].tolist())
        assert by_ssrc.setdefault(ssrc, relay) == relay, "two phones with one SSRC"
    heard = packets[~packets["out"]]
    times: list[float] = []
    total = gone = 0
    for relay, mine in sent.items():
        begun, ended = mine["time"][0], mine["time"][-1]
        got = heard[(heard["relay"] == relay) & (heard["time"] <= ended)]
        assert set(got["port"].tolist()) <= {int(mine["port"][0])}
        assert not set(got["ssrc"].tolist()) - set(by_ssrc), "nothing is nobody's"
        for other, theirs in sent.items():
            of = got[got["ssrc"] == int(theirs["ssrc"][0])]
            if other == relay or rooms[other] != rooms[relay]:
                assert not len(of), f"{relay} hears {'itself' if other == relay else 'another room'}"
                continue
            # What was sent while both were there, and after both were learned.
            both, last = max(begun, theirs["time"][0]), min(ended, theirs["time"][-1]) - LEAVING_S
            first = min([both + LATEST_S, *of["time"][:1]])
            due = theirs[(theirs["time"] >= first) & (theirs["time"] <= last)]
            steps = np.diff(of["seq"].astype(np.int64)) & 0xFFFF
            assert ((steps >= 1) & (steps <= 1 + lost)).all(), f"{relay} of {other}: {Counter(steps[steps != 1].tolist())} between {len(of)} packets"
            missing = set(due["seq"].tolist()) - set(of["seq"].tolist())
            gone += len(missing)
            assert gone <= lost, f"{relay} of {other}: {len(missing)} of {len(due)} are missing, and the wires have lost {lost} of all"
            times += [first - both] if len(of) else []
            total += len(of)
    return times, total


def check_records(host: str, packets: np.ndarray, records: list[dict], lost: int) -> None:
    """Each record says what the wire does, but for packets that came between the last reading of a row and its end: of every participant
    a few, and by far not what one row has counted; and for those that the wires have lost."""
    came = Counter(packets["relay"][~packets["out"]].tolist())
    wrong = []
    for one in records:
        (media,) = one["media"]
        here = came[int(media["relay_port"].rpartition(":")[2])]
        if not -lost <= here - (media["received_packets"] or 0) <= BETWEEN:
            wrong.append(f"{one['participant']} in {one['conference']}: {here} came, {media['received_packets']} in its record ({one['joined']} to {one['left']}, {one['reason']}; {media['note']})")
    assert not wrong, f"{host}: {'; '.join(wrong)}"


@pytest.mark.slow
@pytest.mark.parametrize("server", ["kamailio", "opensips"])
def test_many_dial_in_and_none_loses_a_packet(tmp_path: Path, server: str) -> None:
    need(server)
    with bridge(tmp_path) as room:
        room.operator.stop()
        room.agent.stop()
        room.settings["conference"] |= {"timeout": TIMEOUT_S, "sip": "udp:127.0.0.1:5070"}
        room.settings["softswitch"]["conference_copies"] = 2000
        room.softswitch.stop()
        shutil.rmtree(room.pin_dir, ignore_errors=True)
        room.start()
        for name in [one for host in HOSTS for one in rooms_of(host)]:
            room.ask("POST", f"/v1/conferences?name={name}")
        room.ask("POST", "/v1/conferences?name=room")
        room.await_ready()
        running = sip_server(room, server)
        wires = [Wire(room.topology, room.work, host) for host in HOSTS]
        lost_before = sum(room.topology.lost_on_wires().values())
        try:
            silent = sipp(room, "caller", "uac_conference_silent", "-p", "5990", "-mp", "5000", "-m", "2", "-l", "2", "-inf", str(_callees(room, ["room"])))
            callers = [
                sipp(
                    room, host, "uac_conference", "-p", "5080", "-mp", "6000", "-r", "4", "-m", str(CALLS), "-l", str(AT_ONCE),
                    "-inf", str(_callees(room, rooms_of(host))),
                ) for host in HOSTS
            ]  # fmt: skip
            for process in (*callers, silent):
                assert process.wait(60) == 0, f"{process.name}: {process.tail()}"
            wired = {wire.host: wire.stop() for wire in wires}
            lost = sum(room.topology.lost_on_wires().values()) - lost_before
            records = room.records(len(HOSTS) * CALLS + 2)
            # Everybody came by a call, and went by a BYE or because nothing was heard.
            assert Counter((one["conference"] == "room", one["reason"]) for one in records) == {(False, "bye"): len(HOSTS) * CALLS, (True, "media-timeout"): 2}
            times: list[float] = []
            heard = 0
            for host, packets in wired.items():
                mine = [one for one in records if one["conference"] in rooms_of(host)]
                rooms = {int(one["media"][0]["relay_port"].rpartition(":")[2]): one["conference"] for one in mine}
                of_host, total = check_host(packets, rooms, lost)
                times, heard = times + of_host, heard + total
                check_records(host, packets, mine, lost)
            print(
                f"{server}: {len(HOSTS) * CALLS} calls, {len(times)} pairs hear each other after {np.median(times):.2f} s (half of them), {max(times):.2f} s (all), {heard} packets heard, {lost} lost on the wires"
            )
            assert len(times) > len(HOSTS) * CALLS and heard > 20_000 and np.median(times) < JOINED_S
            # Nothing is left behind.
            listed = room.ask("GET", "/v1/conferences")["conferences"]
            assert all((one["participants"], one["design"], one["problem"]) == (0, "empty", "") for one in listed) and len(listed) == len(HOSTS) * ROOMS + 1
            room.agent.kill()
            room.start_agent()
            room.agent.await_log(" 0 rows found, 0 of them removed")
        finally:
            running.stop()


def _callees(room: Bridge, rooms: list[str]) -> Path:
    """SIPp's file of who is called, one after the other."""
    path = room.work / f"callees-{rooms[0]}.csv"
    path.write_text("SEQUENTIAL\n" + "".join(f"{name};\n" for name in rooms))
    return path
