"""Every relay of the bench carries the same calls: both ways, to the right phones, nothing lost, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load import Load
from bench.peers import PEERS, Peer, Shunt

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.xdist_group("browser")]  # the load takes a processor
CALLS = 10


@pytest.mark.parametrize("cls", PEERS, ids=lambda cls: cls.name)
def test_a_peer_relays_every_packet_to_its_phone(load: Load, tmp_path: Path, cls: type[Peer]):
    if cls.missing():
        pytest.skip(f"{cls.name} is not installed")
    peer = cls(load.wires, tmp_path, load.other_cpus)
    try:
        load.route(peer.start(CALLS))
        load.run(1000, 0.2)  # relays in user space learn from the first packets
        found = load.run(1000, 0.5, pids=peer.pids)
        assert bool(peer.pids) == bool(found.process_ns)
        if isinstance(peer, Shunt):
            assert peer.plane.totals()["relayed_packets"] >= found.sent
    finally:
        peer.stop()
    assert found.sent > 100 and found.softirq_ns > 0
    assert (found.received, found.misdelivered, found.corrupt, found.duplicates) == (found.sent, 0, 0, 0)
    assert (found.stream_received > 0).all() and len(found.stream_received) == 2 * CALLS
    if cls.name not in ("forward", "redirect"):
        load.route([(40000 + 2 * n, 40001 + 2 * n) for n in range(CALLS)])
        assert load.run(1000, 0.2).received == 0, "something still relays"


def test_direct_needs_no_relay_and_leaves_the_doors_free(load: Load):
    load.route(CALLS)
    with load.direct():
        assert (found := load.run(1000, 0.2)).received == found.sent > 0
    assert load.run(1000, 0.2).received == 0
