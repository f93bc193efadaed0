"""iperf3's datagrams really go through the relay under test, and nothing of the scenario stays behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import iperf
from bench.load import Load

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.xdist_group("browser")]  # the load takes a processor


@pytest.mark.parametrize("way", iperf.WAYS)
def test_datagrams_arrive_by_way_of_the_relay(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str):
    monkeypatch.setattr(iperf.FullShunt, "further", 50_000)
    found = iperf.measure(load.wires, tmp_path, load.other_cpus, way, 1.0)
    assert found["sent"] > 100 and found["lost"] < found["sent"]
    if way == "shunt":
        # Its own stream both ways beside the others; each datagram, and the two of iperf3's greeting.
        assert found["entries"] == 50_002 and found["sent"] <= found["relayed"] <= found["sent"] + 10
    else:
        assert found["relayed"] is None
    for namespace in (load.wires.phones, load.wires.relay):
        assert "77" not in load.wires.run(namespace, "ip", "rule", "show")
        assert not json.loads(load.wires.run(namespace, "nft", "-j", "list", "tables"))["nftables"][1:]
