"""The v1model program's build options and what watches streams: compiled with each, and run in BMv2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.needs import need
from tests.p4 import bmv2
from tests.vectors.model import Port
from tests.vectors.relay import DSCP_6, RTCP, V4, V4_TO_6, V6, packet

need(*bmv2.TOOLS)

INDEX, INDEX6 = 5, 9


@pytest.mark.parametrize("options", [["-DACTIONS=plain", "-DRELAY6_SIZE=0"], ["-DACTIONS=bridged", "-DRELAY_KEY=hash32"], ["-DRELAY_KEY=exact", "-DCPU_PORT=5"]], ids=" ".join)
def test_options_compile(options: list[str], tmp_path: Path) -> None:
    made = json.loads(bmv2.compile_twin(tmp_path, options).read_text())
    tables = {table["name"]: table for pipeline in made["pipelines"] for table in pipeline["tables"]}
    assert tables["Ingress.relay"]["support_timeout"]
    assert ("Ingress.relay6" in tables) == ("-DRELAY6_SIZE=0" not in options)
    actions = set(tables["Ingress.relay"]["actions"])
    assert ("Ingress.relay_to_from" in actions) == ("-DACTIONS=plain" not in options)
    assert ("Ingress.relay_to_v6" in actions) == (not any("ACTIONS" in option for option in options))


@pytest.mark.parametrize(
    "program, options",
    [
        ("relay", "-DRELAY_KEY=hash47"),
        ("relay", "-DACTIONS=all"),
        ("relay", "-DRELAY6_SIZE=0"),
        ("relay", "-DDELAY=1 -DSAMPLES=0"),
        ("conference", "-DSEQUENCE=3"),
        ("conference", "-DSEQUENCE=1 -DSEQUENCE_STATE_SIZE=1000"),
        ("conference", "-DSEQUENCE=2 -DTRACK_SIZE=1000"),
    ],
)
def test_options_that_make_no_sense_are_refused(program: str, options: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="#error"):
        bmv2.compile_twin(tmp_path, options.split(), program)


class Watched:
    """A switch that counts every entry, measures delay and watches two streams."""

    def __init__(self, switch: bmv2.Bmv2, counters: dict[str, str]) -> None:
        self.switch = switch
        self.counters = counters

    def register(self, name: str, index: int) -> int:
        return self.switch.register(name, index)

    def counted(self, table: str, handle: int) -> tuple[int, int]:
        return self.switch.counted(self.counters[table], [handle])[0]

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.switch.send(Port.A, frame)
        assert len(self.switch.received(len(frames))) == len(frames)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    program = bmv2.compile_twin(tmp_path_factory.mktemp("p4"), ["-DCOUNTED=1", "-DDELAY=1"])
    with bmv2.running(program) as switch:
        switch.cli(
            [
                *bmv2.scene_commands(),
                *(bmv2.relay_command(entry) for entry in (V4, V6, V4_TO_6, DSCP_6)),
                f"table_add Ingress.sample Ingress.watch {bmv2.key_words(V4.key)} => {INDEX}",
                f"table_add Ingress.sample6 Ingress.watch6 {bmv2.key_words(V6.key)} => {INDEX6}",
            ]
        )
        yield Watched(switch, bmv2.direct_counters(program))


def rtp(seq: int, length: int = 20) -> bytes:
    return b"\x80\x00" + (seq & 0xFFFF).to_bytes(2, "big") + bytes(8) + bytes(length - 12)


@pytest.mark.netns
@pytest.mark.parametrize("made, index", [(V4, INDEX), (V6, INDEX6)], ids=["IPv4", "IPv6"])
def test_missing_grows_by_what_never_came(watched: Watched, made: object, index: int) -> None:
    frames = {seq: bytes(packet(made, rtp(seq))) for seq in range(65530, 65545)}  # type: ignore[arg-type]
    watched.send(frames[65530])
    before = watched.register("Ingress.missing", index)
    # 65532 comes a place late, 65535 and 65537 never, and the numbers wrap round; RTCP on the same port has none.
    watched.send(frames[65531], frames[65533], frames[65532], frames[65534], bytes(packet(made, RTCP)), frames[65536], frames[65538])  # type: ignore[arg-type]
    assert (watched.register("Ingress.missing", index) - before) % 65536 == 2
    assert watched.register("Ingress.sequence.expected", index) == 65539 % 65536


@pytest.mark.netns
def test_entries_and_watched_streams_are_counted(watched: Watched) -> None:
    before, sampled = watched.counted("Ingress.relay", 0), watched.counted("Ingress.sample", 0)
    frames = [bytes(packet(V4, rtp(seq, length))) for seq, length in ((1, 20), (2, 33))]
    watched.send(*frames)
    for earlier, table in ((before, "Ingress.relay"), (sampled, "Ingress.sample")):
        now = watched.counted(table, 0)
        assert (now[0] - earlier[0], now[1] - earlier[1]) == (2, sum(map(len, frames)))
    # An entry that is not watched is counted by itself alone.
    watched.send(bytes(packet(DSCP_6)))
    assert watched.counted("Ingress.relay6", 1)[0] == 1
    assert watched.counted("Ingress.sample", 0) == (sampled[0] + 2, sampled[1] + sum(map(len, frames)))


@pytest.mark.netns
def test_delay_is_kept_for_watched_streams(watched: Watched) -> None:
    watched.send(bytes(packet(V4)), bytes(packet(V4)))
    last, most = (watched.register(f"Egress.delay.{name}", INDEX) for name in ("last", "most"))
    assert 0 < last <= most < 2_000_000_000
    assert watched.register("Egress.delay.last", INDEX + 1) == 0
