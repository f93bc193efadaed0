"""How the softswitch starts: what cannot succeed says so once and leaves nothing pinned, and a killed one's entries are adopted, each that was acknowledged."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.bfrt.bulk import Bulk, Flow, spread
from tests.bfrt.traffic import INTERFACE, namespace
from tests.dataplane.test_table import FIRST
from tests.softswitch import bpf
from tests.softswitch.client import Session
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed
from tests.softswitch.testrun import attached, inside

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

CONFIG, OTHER = 78, 1  # exit codes: EX_CONFIG of sysexits.h, after which systemd does not start it again; and a failure that may pass
CAPACITY = 2_000
XDP_PASS = bytes.fromhex("b700000002000000 9500000000000000")  # r0 = XDP_PASS; exit
_numbers = itertools.count()


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with namespace() as name:
        yield name


@pytest.fixture
def pins() -> Iterator[Path]:
    """A folder for pins that is not there yet, in the system's BPF file system."""
    path = Path(f"/sys/fs/bpf/start{os.getpid()}-{next(_numbers)}")
    yield path
    if path.exists():
        shutil.rmtree(path)


@pytest.fixture
def softswitch(home: str, pins: Path) -> Iterator[Softswitch]:
    """One that has not been started, and would start."""
    made = Softswitch([INTERFACE], namespace=home, pin_dir=pins, capacity=CAPACITY)
    yield made
    made.unload()


def failed_line(softswitch: Softswitch, code: int) -> str:
    """The one line with which a start fails."""
    with pytest.raises(SoftswitchFailed) as failed:
        softswitch.start()
    lines = failed.value.log.splitlines()
    assert failed.value.code == code and len(lines) == 1 and lines[0].startswith("softswitch: "), failed.value.log
    return lines[0]


@contextlib.contextmanager
def foreign_program(home: str, interface: str = INTERFACE) -> Iterator[None]:
    """Another XDP program on an interface."""
    path = Path(f"/sys/fs/bpf/foreign{os.getpid()}-{next(_numbers)}")
    fd = bpf.load_xdp("foreign", XDP_PASS)
    bpf.pin(fd, path)
    os.close(fd)
    with inside(home):  # not `ip -n`, which sees other file systems
        subprocess.run(["ip", "link", "set", interface, "xdp", "pinned", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "-n", home, "link", "set", interface, "xdp", "off"], check=True)
        path.unlink()


@contextlib.contextmanager
def taken(softswitch: Softswitch, home: str) -> Iterator[str]:
    """A process listens where the softswitch is to; yields the address."""
    with inside(home), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        softswitch.listen = "127.0.0.1:%d" % listener.getsockname()[1]
        yield softswitch.listen


# Starts that fail


def starts(softswitch: Softswitch) -> None:
    """It starts after all, with another capacity, and serves."""
    softswitch.capacity = 2 * CAPACITY
    assert f"0 of {2 * CAPACITY} entries" in softswitch.start()
    assert softswitch.pinned() and "capacity" not in softswitch.log


def test_no_such_interface(softswitch: Softswitch, pins: Path) -> None:
    softswitch.interfaces = [INTERFACE, "nowhere0"]
    line = failed_line(softswitch, CONFIG)
    assert "nowhere0" in line and "softswitch.interfaces" in line and INTERFACE not in line
    assert not pins.exists()
    softswitch.interfaces = [INTERFACE]
    starts(softswitch)


def test_another_xdp_program_on_an_interface(softswitch: Softswitch, home: str, pins: Path) -> None:
    with foreign_program(home):
        line = failed_line(softswitch, CONFIG)
        assert INTERFACE in line and "another XDP program" in line
        assert not pins.exists()
        with attached(INTERFACE, home) as program:
            assert program.name == "foreign", "it stays"
    starts(softswitch)


def test_an_address_that_is_taken(softswitch: Softswitch, home: str, pins: Path) -> None:
    former = softswitch.listen
    with taken(softswitch, home) as address:
        assert address in failed_line(softswitch, OTHER)
        assert not pins.exists()
        with pytest.raises(LookupError):
            attached(INTERFACE, home)
    softswitch.listen = former
    starts(softswitch)


def test_a_unix_socket_on_which_another_listens(softswitch: Softswitch, pins: Path) -> None:
    path = softswitch.listen.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert path in failed_line(softswitch, OTHER)
        assert not pins.exists()
        with socket.socket(socket.AF_UNIX) as still:
            still.connect(path)
    starts(softswitch)  # on the rest of a process that is gone


def test_a_certificate_that_is_not_there(softswitch: Softswitch, pins: Path) -> None:
    softswitch.tls = {"ca_file": None, "certificate_file": "/nowhere/server.pem", "key_file": "/nowhere/server.key"}
    assert "/nowhere/server.pem" in failed_line(softswitch, CONFIG)
    assert not pins.exists()
    softswitch.tls = None
    starts(softswitch)


def test_a_file_that_is_no_certificate(softswitch: Softswitch, pins: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate\n")
    softswitch.tls = {"ca_file": str(wrong), "certificate_file": str(wrong), "key_file": str(wrong)}
    softswitch.listen = "127.0.0.1:0"
    assert str(wrong) in failed_line(softswitch, CONFIG)
    assert not pins.exists()


def test_a_folder_of_pins_that_another_has(softswitch: Softswitch, home: str, pins: Path) -> None:
    softswitch.start()
    before = softswitch.pinned()
    second = Softswitch(namespace=home, pin_dir=pins)
    try:
        assert str(pins) in failed_line(second, OTHER)
        assert softswitch.running and softswitch.pinned() == before
    finally:
        shutil.rmtree(second.folder)


@pytest.mark.parametrize("what", ["interface", "program", "address", "certificate"])
def test_what_was_pinned_before_stays_when_a_start_fails(softswitch: Softswitch, home: str, what: str) -> None:
    """Entries of a former process, and its programs on the interface: they go on, and the next start adopts them."""
    softswitch.start()
    with Plane(softswitch.target) as plane:
        assert plane.insert([FIRST]) == [None]
    softswitch.stop()
    before = softswitch.pinned()
    former = dict(vars(softswitch))
    with contextlib.ExitStack() as stack:
        if what == "interface":
            softswitch.interfaces = ["nowhere0"]
        elif what == "address":
            stack.enter_context(taken(softswitch, home))
        elif what == "program":
            stack.enter_context(foreign_program(home, "out0"))
            softswitch.interfaces = [INTERFACE, "out0"]
        else:
            softswitch.tls = {"ca_file": None, "certificate_file": "/nowhere/server.pem", "key_file": "/nowhere/server.key"}
        failed_line(softswitch, OTHER if what == "address" else CONFIG)
        assert softswitch.pinned() == before
        with attached(INTERFACE, home) as program:
            assert program.name.startswith("relay_")
    vars(softswitch).update(interfaces=former["interfaces"], listen=former["listen"], tls=former["tls"])
    assert f"1 of {CAPACITY} entries" in softswitch.start()
    with Plane(softswitch.target) as plane:
        assert plane.get([FIRST.key]) == [FIRST]


def test_another_capacity_than_that_of_the_pinned_tables(softswitch: Softswitch) -> None:
    """The tables are kept; a line says since when the new capacity counts: since the next start after an unload."""
    softswitch.start()
    with Plane(softswitch.target) as plane:
        assert plane.insert([FIRST]) == [None]
    softswitch.stop()
    softswitch.capacity = 2 * CAPACITY
    assert f"1 of {CAPACITY} entries" in softswitch.start()
    (line,) = (line for line in softswitch.log.splitlines() if "capacity" in line)
    assert str(softswitch.pin_dir) in line and f"capacity {CAPACITY};" in line and f"{2 * CAPACITY} takes effect after" in line and "--unload" in line
    softswitch.stop()
    softswitch.take_out()
    assert softswitch.pinned() == []
    assert f"0 of {2 * CAPACITY} entries" in softswitch.start()


# Kills


def test_a_killed_process_leaves_exactly_what_it_has_acknowledged(home: str) -> None:
    """kill -9 while four clients insert and delete, ten times: the next process has every acknowledged change, and of the others each whole or not at all."""
    rng = random.Random(21)
    with Softswitch([INTERFACE], namespace=home, capacity=60_000) as softswitch:
        flows = spread(40_000)
        held: set[Flow] = set()
        for _ in range(10):
            with Session(softswitch.target) as session:
                bulk = Bulk(session)
                write = session.channel.unary_unary("/bfrt_proto.BfRuntime/Write")
                absent = [flow for flow in flows if flow not in held]
                rng.shuffle(absent)
                gone = rng.sample(sorted(held), len(held) // 2)
                batches = [("insert", absent[at : at + 500]) for at in range(0, 8_000, 500)] + [("delete", gone[at : at + 500]) for at in range(0, len(gone), 500)]
                rng.shuffle(batches)
                calls = [(kind, batch, write.future(bulk.inserts(batch) if kind == "insert" else bulk.deletes(batch))) for kind, batch in batches]
                time.sleep(rng.uniform(0.0, 0.03))
                softswitch.kill()
                unsure: set[Flow] = set()
                for kind, batch, call in calls:
                    if not isinstance(call.exception(), grpc.RpcError):
                        held = held | set(batch) if kind == "insert" else held - set(batch)
                    else:
                        unsure |= set(batch)
            softswitch.start()
            with Session(softswitch.target) as session:
                bulk = Bulk(session)
                found = bulk.keys(bulk.read(bulk.reading()))
            assert held - unsure <= found <= held | unsure
            assert f"{len(found)} of 60000 entries" in softswitch.ready
            held = found
        assert held
