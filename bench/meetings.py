"""Meetings by tree design (Scallop, figures 15 to 17): computed from the engine's limits, and loaded into the softswitch for real.

Rows come from the allocator that the agent uses (crates/conferences/conference/examples/meetings.rs), meeting by meeting. Then packets of the first and the last meeting are sent
through the programs: each of its other participants must get each packet once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench import relay_table
from bench.replication import frame_of
from bench.softswitch import Table
from shunt.cli.capacity import PAPER, Design, Load, capacity, paper
from shunt.net import Endpoint, FiveTuple
from tests.dataplane import lab as lab_module
from tests.lab.topology import LabError
from tests.softswitch.replication import Action, Rewrite, StreamKey

SIZES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 70, 100)
PACKETS_PER_SENDER = 284.3  # a second: RTP of a participant of Scallop's table 1
CORES = 32
_ALLOCATOR = ROOT / "target" / "release" / "examples" / "meetings"
_PROBES = 10
_PORTS, _FIRST_PORT = 60_000, 1024


def curves() -> list[dict[str, Any]]:
    """How many meetings fit by participants, where all send and where one does, by design; what each limit alone would allow."""
    rows = []
    for people in SIZES:
        for senders in {1, people}:
            for design in Design:
                if (design is Design.TWO_PARTY) == (people == 2):
                    # With numbers rewritten for every receiver, and with none: what lies between is for the meetings to say.
                    for adapted in {0, people if design in (Design.RA_R, Design.RA_SR) else 0}:
                        load = Load(participants=people, senders=senders, adapted=adapted)
                        rows.append({"participants": people, "senders": senders, "adapted": adapted, **capacity(design, load)})
    return rows


def software(people: int, senders: int, ns_per_copy: float, cores: int = CORES) -> float:
    """Meetings that as many cores would carry at this cost of a copy, if it grew with nothing but their number."""
    return cores * 1e9 / (ns_per_copy * PACKETS_PER_SENDER * senders * (people - 1))


def gains(rows: list[dict[str, Any]], ns_per_copy: float) -> list[dict[str, Any]]:
    """How many times the meetings of software fit (figure 15): the least and the most of designs, senders and adapted receivers."""
    found = []
    for people in SIZES:
        each = [row["meetings"] / software(people, row["senders"], ns_per_copy) for row in rows if row["participants"] == people]
        found.append({"participants": people, "least": min(each), "most": max(each)})
    return found


class Source(NamedTuple):
    """A participant's stream."""

    meeting: str
    sender: str


class Loaded:
    """A softswitch that holds meetings."""

    def __init__(self, lab: lab_module.Lab, copies: int) -> None:
        for interface, address, mac in (("ra", lab_module.HOST_A4, lab_module.MAC_A), ("rb", lab_module.HOST_B4, lab_module.MAC_B)):
            lab_module.sh("ip", "neigh", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent")
        self.softswitch = Table(["ra", "rb"], capacity=4096, copies=copies)
        self.table = self.softswitch.replication
        self.writes = 0
        self._places: dict[tuple[str, str], int] = {}
        self.rids: dict[Source, dict[str, tuple[int, int]]] = {}

    def key(self, meeting: str, participant: str) -> StreamKey:
        place = self._places.setdefault((meeting, participant), len(self._places))
        source = Endpoint((0x0B000000 + place // _PORTS).to_bytes(4, "big"), _FIRST_PORT + place % _PORTS)
        return StreamKey(FiveTuple(source, Endpoint.of(lab_module.RELAY_A4, _FIRST_PORT + place % _PORTS)), place)

    def carry_out(self, write: str, watched: set[str]) -> None:
        """A write of the allocator, a line of its output. watched: meetings of which it is noted who gets copies of whom."""
        self.writes += 1
        table, *words = write.split()
        if table == "node":
            node, rid, port = map(int, words)
            self.table.insert_node(node, rid, [port], [])
        elif table.startswith("tree"):
            members: list[tuple[int, int | None]] = [(int(node), int(xid)) for node, _, xid in (word.partition(":") for word in words[1:])]
            (self.table.insert_tree if table == "tree+" else self.table.modify_tree)(int(words[0]), members)
        elif table == "prune":
            self.table.set_prune(int(words[0]), [int(port) for port in words[1:]])
        elif table == "copy":
            stream, rid, (meeting, sender, receiver) = int(words[0]), int(words[1]), words[2:]
            port = self.key(meeting, receiver).flow.src.port
            self.table.insert_copy(stream, rid, Rewrite(Endpoint.of(lab_module.RELAY_B4, port), Endpoint.of(lab_module.HOST_B4, port)))
            if meeting in watched:
                self.rids.setdefault(Source(meeting, sender), {})[receiver] = stream, rid
        elif table == "stream":
            mgid, trees, l1_xid, rid, l2_xid, stream = map(int, words[2:])
            self.table.insert_stream(self.key(words[0], words[1]), Action(mgid, l1_xid, rid, l2_xid, stream, trees=trees))

    def probe(self, source: Source) -> None:
        """Send packets of one stream. Raises RuntimeError when not each of its receivers got each once."""
        key, rids = self.key(source.meeting, source.sender), self.rids[source]
        before = {name: self.table.count_copy(*row).packets for name, row in rids.items()}
        for _ in range(_PROBES):
            self.softswitch.run_live(frame_of(key))
        got = {name: self.table.count_copy(*row).packets - before[name] for name, row in rids.items()}
        packets = self.table.count_stream(key).packets
        if set(got.values()) != {_PROBES} or packets != _PROBES:
            raise RuntimeError(f"{source}: of {packets} packets its receivers got {got}, and not {_PROBES} each")

    def close(self) -> None:
        self.softswitch.close()


def load(design: Design, share: int) -> dict[str, Any]:
    """Put in one of `share` meetings that fit by the design, of as many participants as in the paper, all sending; and take packets through the first and the last."""
    people = PAPER[design][0].participants
    if design is Design.TWO_PARTY:
        return _load_two_party(share)
    if not _ALLOCATOR.exists():
        raise LabError(f"{_ALLOCATOR} is not built; `make bench-programs` builds it")
    fit = capacity(design, Load(participants=people, layered_sources=1, sources=1, adapted=0))["meetings"]
    count = max(2, fit // share)
    with lab_module.build("rm") as lab, lab_module.inside(lab.ns("relay")):
        # The softswitch has as much room for nodes as for copies; with a set of trees for each quality there are more nodes.
        nodes = {Design.NRA: people, Design.RA_R: 3 * people, Design.RA_SR: 3 * people * (people - 1)}[design]
        loaded = Loaded(lab, count * max(people * (people - 1), nodes) + 1)
        try:
            watched, begun, in_allocator = {"m0", f"m{count - 1}"}, time.perf_counter(), 0.0
            with subprocess.Popen([str(_ALLOCATOR), design.value, str(count), str(people)], stdout=subprocess.PIPE, text=True) as allocator:
                assert allocator.stdout is not None
                for line in allocator.stdout:
                    if line.startswith("allocator "):
                        in_allocator = float(line.split()[1])
                    else:
                        loaded.carry_out(line, watched)
            if allocator.returncode:
                raise RuntimeError(f"{_ALLOCATOR.name} ended with {allocator.returncode}")
            seconds = time.perf_counter() - begun
            for source in loaded.rids:
                loaded.probe(source)
            memory = sum(loaded.softswitch.memory().values())
            found = {"trees": len(loaded.table.trees()), "nodes": len(loaded.table.nodes()), "streams": len(loaded.table.streams())}
            loaded.table.clear()
        finally:
            loaded.close()
    return {
        "design": design.value, "people": people, "fit": fit, "meetings": count, **found, "writes": loaded.writes, "seconds": round(seconds, 2),
        "allocator_s": round(in_allocator, 2), "kernel_mib": memory >> 20, "probed": len(loaded.rids),
    }  # fmt: skip


def _load_two_party(share: int) -> dict[str, Any]:
    """Meetings of two, which are two entries of the relay table each."""
    fit = capacity(Design.TWO_PARTY, PAPER[Design.TWO_PARTY][0])["meetings"]
    count = max(2, fit // share)
    with lab_module.build("rm") as lab, lab_module.inside(lab.ns("relay")):
        lab_module.sh("ip", "neigh", "replace", lab_module.HOST_B4, "lladdr", lab_module.MAC_B, "dev", "rb", "nud", "permanent")
        lab_module.sh("ip", "route", "add", "10.200.0.0/24", "via", lab_module.HOST_B4)
        table = Table(["ra", "rb"], capacity=2 * count)
        try:
            seconds = relay_table.insert(table, 0, 2 * count)
            ends = [relay_table.entry(number).key for meeting in (0, count - 1) for number in (2 * meeting, 2 * meeting + 1)]
            for key in ends:
                for number in range(_PROBES):
                    table.run_live(frame_of(StreamKey(key, 1), number))
            relayed = [one.packets for one in table.plane.stats(ends).values()]
            if relayed != [_PROBES] * len(ends):
                raise RuntimeError(f"of {_PROBES} packets each the first and the last meeting's people had {relayed} relayed")
            entries, memory = len(table.plane), sum(table.memory().values())
        finally:
            table.close()
    return {
        "design": Design.TWO_PARTY.value, "people": 2, "fit": fit, "meetings": count, "trees": 0, "nodes": 0, "streams": entries, "writes": entries, "seconds": round(seconds, 2),
        "allocator_s": 0.0, "kernel_mib": memory >> 20, "probed": len(ends),
    }  # fmt: skip
