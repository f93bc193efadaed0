"""The vectors of replication, run through the v1model twin in BMv2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.needs import need
from tests.p4 import bmv2
from tests.vectors.model import TO_SERVER, Port, routed
from tests.vectors.relay import V4, packet, relayed
from tests.vectors.replication import ALICES, BOB, VECTORS, Replicated, copies

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns

ETHERNET = 14


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["numbers stay", "S-LM", "S-LR"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bmv2.Bmv2, dict[str, str]]]:
    """The switch of the scene, and the names of the counters by table."""
    program = bmv2.compile_twin(tmp_path_factory.mktemp("p4"), [f"-DSEQUENCE={request.param}"], "conference")
    with bmv2.running(program) as made:
        made.cli([*bmv2.scene_commands(), bmv2.relay_command(V4), *bmv2.replication_commands(request.param)])
        yield made, bmv2.direct_counters(program)


@pytest.fixture
def switch(built: tuple[bmv2.Bmv2, dict[str, str]]) -> bmv2.Bmv2:
    return built[0]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vector(switch: bmv2.Bmv2, vector: Replicated) -> None:
    wanted = [(Port.SERVER, routed(vector.frame, TO_SERVER))] if vector.passed else copies(vector, vector.on_switch, Port.CPU)
    switch.send(Port.A, vector.frame)
    frames = sorted(switch.received(len(wanted)))
    assert [(port.name, frame.hex()) for port, frame in frames] == [(port.name, frame.hex()) for port, frame in wanted]
    assert switch.notices(0) == []


def test_what_becomes_no_packet_is_counted(switch: bmv2.Bmv2) -> None:
    """Copies without a row, with one for the other version of IP, and those that are too long for their own port."""
    vector = VECTORS[0]
    assert vector.stream is ALICES and vector.on_switch == [BOB] and len(vector.to) == 3
    length = len(vector.frame) - ETHERNET

    def dropped(expected: int) -> dict[str, int]:
        before = switch.dropped()
        switch.send(Port.A, vector.frame)
        after = switch.dropped(sum(before.values()) + expected)
        assert len(switch.received(4 - expected)) == 4 - expected
        return {reason: packets - before.get(reason, 0) for reason, packets in after.items() if packets > before.get(reason, 0)}

    # CAROL and DAVE speak IPv6, and NOBODY has no row.
    assert dropped(3) == {"no_copy": 3}
    switch.cli([bmv2.mtu_command(Port.B, length)])
    assert dropped(3) == {"no_copy": 3}
    switch.cli(["table_clear Egress.mtu", bmv2.mtu_command(Port.B, length - 1)])
    assert dropped(4) == {"no_copy": 3, "too_big": 1}
    switch.cli(["table_clear Egress.mtu"])


def test_relaying_goes_on_beside_conferences(switch: bmv2.Bmv2) -> None:
    switch.send(Port.A, bytes(packet(V4)))
    assert switch.received(1) == [(Port.B, bytes(relayed(V4)))]


def test_streams_and_copies_are_counted(built: tuple[bmv2.Bmv2, dict[str, str]]) -> None:
    switch, counters = built

    def counted(table: str, handle: int) -> int:
        return switch.counted(counters[table], [handle])[0][0]

    rows = {"Ingress.conference": 0, "Egress.copy": 1}  # ALICES, and BOB's of her stream
    before = {table: counted(table, handle) for table, handle in rows.items()}
    vector = VECTORS[0]
    assert vector.stream is ALICES and BOB in vector.to
    for _ in range(3):
        switch.send(Port.A, vector.frame)
    switch.received(3 * len(vector.to))
    assert {table: counted(table, handle) - before[table] for table, handle in rows.items()} == {"Ingress.conference": 3, "Egress.copy": 3}
