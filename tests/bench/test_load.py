"""The load generator: the receiver's accounts against an oracle, frames on a real wire, and figures computed by hand."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from bench import load as instrument
from bench.load import SETTINGS, TEMPLATE, Load, LoadError, bin_edge, quantile
from bench.relay_peers import WINDOW_S, analyse, batch_of, cpu_ns, is_clean, mos_of_streams, typical_cpu_ns, what_ended
from bench.runs import spread
from tests.softswitch import bpf
from tests.softswitch.testrun import XDP_DROP

pytestmark = [pytest.mark.netns, pytest.mark.xdist_group("browser")]  # the load takes a processor


def _receive(load: Load, sequence: list[int], *, port: int | None = None, garble: bool = False) -> np.void:
    """Give the receiver these sequence numbers of stream 0, as frames in memory; what it then says of that stream."""
    load.route(1)
    load._clear()
    load._number += 1
    load._write(0, 0, 1, 0, 0, 1)
    frame = bytearray(TEMPLATE)
    stream = load._streams[0]
    struct.pack_into("!II", frame, 26, int(stream["saddr"]), int(stream["far_addr"]))
    struct.pack_into("!HH", frame, 34, int(stream["sport"]), port or int(stream["far_port"]))
    words = struct.unpack_from("!10H", frame, 14)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", frame, 24, ~(total + (total >> 16)) & 0xFFFF ^ (1 if garble else 0))
    struct.pack_into("!I", frame, 50, 0x5A000000)
    for seq in sequence:
        struct.pack_into("!H", frame, 44, seq & 0xFFFF)
        struct.pack_into("<QI", frame, 54, time.monotonic_ns(), load._number)
        assert bpf.test_run(load.programs["receive"], bytes(frame))[0] == XDP_DROP, "swallowed"
    return load._received[0].copy()


def _oracle(sequence: list[int]) -> dict[str, int]:
    """What a receiver with a memory of 64 sequence numbers must say."""
    got = dict.fromkeys(("packets", "duplicates", "reordered", "stale"), 0)
    highest, known = sequence[0], {sequence[0]}
    got["packets"] = 1
    for seq in sequence[1:]:
        if seq > highest:
            highest = seq
            got["packets"] += 1
        elif highest - seq >= 64:
            got["stale"] += 1
            continue
        elif seq in known:
            got["duplicates"] += 1
            continue
        else:
            got["packets"] += 1
            got["reordered"] += 1
        known.add(seq)
    return got


@pytest.mark.parametrize("seed", range(6))
def test_every_packet_is_accounted_for(load, seed):
    rng = random.Random(seed)
    first = rng.randrange(65536) if seed else 65500  # over the end of the 16 bits too
    sequence = [first + n for n in range(300) if rng.random() > 0.1]
    for _ in range(40):
        at = rng.randrange(1, len(sequence))
        if rng.random() < 0.5:
            sequence.insert(at, sequence[max(0, at - rng.randrange(1, 100))])
        else:
            other = min(len(sequence) - 1, at + rng.randrange(1, 90))
            sequence[at], sequence[other] = sequence[other], sequence[at]
    found, wanted = _receive(load, sequence), _oracle(sequence)
    assert {name: int(found[name]) for name in wanted} == wanted


def test_frames_that_are_not_as_they_should_be_are_not_counted_as_received(load):
    assert int(_receive(load, [1, 2, 3], port=4321)["misdelivered"]) == 3
    found = _receive(load, [1, 2, 3], garble=True)
    assert (int(found["corrupt"]), int(found["packets"])) == (3, 0)


@pytest.mark.slow
def test_frames_cross_the_wire_by_the_clock_and_with_correct_checksums(load):
    load.route(20)
    with load.direct():
        found = load.run(2000, 1.0)
    # Other work on the generator's core may hold it up: what it gave up, it must say.
    assert found.sent + found.skipped >= 0.9 * found.offered
    assert found.sent <= found.offered + 1
    assert found.received == found.sent and not found.corrupt and not found.misdelivered and not found.duplicates
    assert sum(found.delay) == found.received
    assert max(found.stream_sent) - min(found.stream_sent) <= 1
    load.wires.forwarding(True)
    try:
        found = load.run(2000, 0.5)
    finally:
        load.wires.forwarding(False)
    assert found.received == found.sent > 0


@pytest.mark.slow
def test_what_comes_after_a_run_is_as_urgent_as_before(load):
    """The generator has precedence while it sends, and its session with it; the next test has none."""
    session = Path("/proc/self/autogroup")
    before = session.read_text() if session.exists() else None
    load.route(1)
    with load.direct():
        assert load.run(50, 0.5).sent
    assert (session.read_text() if session.exists() else None) == before


@pytest.mark.parametrize(("text", "nice"), [("/autogroup-96 nice -20\n", -20), ("/autogroup-96 nice 0\n", 0), ("", 0), (None, 0)])
def test_a_session_without_a_nice_value_of_its_own_has_none(tmp_path, text, nice):
    # The file is empty in a control group of the processor's own, and missing on a kernel without automatic groups.
    group = tmp_path / "autogroup"
    if text is not None:
        group.write_text(text)
    assert instrument.session_nice(group) == nice


@pytest.mark.slow
def test_a_run_is_one_call_into_the_kernel_and_ends_with_its_time(load, monkeypatch):
    # Between two calls the kernel waits for grace periods, and frames that were due then would be late or given up.
    calls = []
    real = instrument.libbpf.run_live
    monkeypatch.setattr(instrument.libbpf, "run_live", lambda *args, **more: (calls.append(time.monotonic()), real(*args, **more)))
    load.route(5)
    with load.direct():
        begun = time.monotonic()
        found = load.run(1000, 1.0)
        took = time.monotonic() - begun
    assert len(calls) == 1
    assert found.sent + found.skipped == found.offered == 1000
    assert 1.0 <= took < 4.0, "a call without an end is ended from outside"


@pytest.mark.slow
def test_frames_are_handed_over_together_when_the_last_of_them_is_due(load):
    load.route(50)
    with load.direct():
        found = load.run(20_000, 0.5, batch=10)
        apart = load.run(20_000, 0.5, batch=1)
    assert found.sent + found.skipped == found.received + found.skipped == 10_000
    # A batch that the clock of the machine held up may come in two, as its ring is emptied meanwhile.
    assert found.softirqs < found.received / 5 and apart.softirqs > apart.received / 2


@pytest.mark.slow
def test_udp_checksums_are_accepted_by_a_socket(load):
    """The relay host's own stack verifies what the generator made: a wrong checksum would be dropped."""
    import socket

    load.route([(40000, 40002)])
    with instrument.inside(load.wires.relay):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.bind((instrument.RELAY_IP, 40000))
        sock.settimeout(2)
        load.run(200, 0.3)
        packet, sender = sock.recvfrom(2048)
    assert sender == (instrument.PHONES[0], instrument.FIRST_PHONE_PORT)
    assert len(packet) == instrument.RTP_BYTES and packet[0] == 0x80 and packet[1] == 8


@pytest.mark.slow
def test_lost_packets_are_lost(load):
    load.route([(40100, 40102)] * 1)
    found = load.run(500, 0.4)  # nobody relays
    assert found.sent > 0 and found.received == 0 and found.lost == found.sent


def test_too_many_calls_are_refused(load):
    with pytest.raises(LoadError, match="more than the generator"):
        load.route(40000)


def test_bins_and_quantiles():
    edges = [bin_edge(n) for n in range(400)]
    assert edges == sorted(set(edges)) and edges[31] == 31 and edges[32] == 32 and edges[64] == 64 and edges[96] == 128
    assert quantile({"10": 98, "64": 1, "96": 1}, 0.5) == 10.5
    assert quantile({"10": 98, "64": 1, "96": 1}, 0.99) == 65
    with pytest.raises(LoadError):
        quantile({}, 0.5)


def test_settings_have_the_layout_of_the_program():
    assert SETTINGS.size == 80 and instrument.STREAM.itemsize == 40 and instrument.PROGRESS.itemsize == 64


def _step(key: str, cpu: int, packets: int = 1000, **more: int) -> dict:
    plain = {"key": key, "offered": packets, "sent": packets, "received": packets, "corrupt": 0, "misdelivered": 0, "process_ns": 0, "softirq_in_process_ns": 0, "samples": []}
    return {**plain, "softirq_ns": cpu * packets, "delay": {"40": packets}, **more}


def test_costs_are_ratios_within_a_repetition():
    steps = []
    for n, wire in enumerate((100, 104, 102)):
        costs = {"direct-before": wire, "direct-after": wire, "rtpproxy": wire + 20000, "shunt": wire + 100 + n}
        steps += [_step(f"cost/{n}/{name}", ns) for name, ns in costs.items()]
    found = analyse(lambda folder: steps if folder == "cost" else [], {"busy_before": 0.0}, ["rtpproxy", "shunt"])
    assert found["figures"]["rtpproxy"]["cpu_ns"]["median"] == 20000
    assert found["figures"]["rtpproxy"]["ratio"] == spread([20000 / 100, 20000 / 101, 20000 / 102])
    assert found["remarks"] == []
    assert [row["met"] for row in found["targets"] if "rtpproxy / Shunt" in row["target"]] == [True]


def test_a_noisy_baseline_says_so():
    steps = [_step(f"cost/0/{name}", ns) for name, ns in {"direct-before": 100, "direct-after": 190, "shunt": 250}.items()]
    found = analyse(lambda folder: steps if folder == "cost" else [], {"busy_before": 0.5}, ["shunt"])
    assert len(found["remarks"]) == 3 and all("to be quoted" in text for text in found["remarks"])


@pytest.mark.slow
def test_softirqs_of_other_programs_are_not_the_loads(load):
    """Traffic over this process's own loopback runs in its own softirqs, and must not be charged to a relay."""
    import socket

    before = load.softirq()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        for _ in range(2000):
            sender.sendto(bytes(100), receiver.getsockname())
            receiver.recv(200)
    # At the least 0.5 µs each would be 1 ms; ksoftirqd may have had something to do meanwhile.
    assert load.softirq()[0] - before < 500_000
    load.route(10)
    with load.direct():
        found = load.run(2000, 0.5)
    assert found.softirq_ns > 50 * found.received


def test_cpu_that_interrupted_the_process_counts_once():
    assert cpu_ns({"process_ns": 900, "softirq_ns": 500, "softirq_in_process_ns": 400, "received": 10}) == 100


def test_a_moment_of_other_work_is_not_in_the_typical_cost():
    # Windows of 1,000 packets: four at 300 + 500 - 100 ns, one disturbed; a last one that the run's end cut short.
    process, softirq, both, samples = 0, 0, 0, []
    for n, factor in enumerate((1, 1, 9, 1, 1)):
        samples.append([n * WINDOW_S, 1000 * n, 1, process, softirq, both])
        process, softirq, both = process + factor * 300_000, softirq + factor * 500_000, both + factor * 100_000
    samples += [[5 * WINDOW_S, 5000, 1, process, softirq, both], [5.1 * WINDOW_S, 5100, 1, process + 10**9, softirq, both]]
    assert typical_cpu_ns({"pps": 1000 / WINDOW_S, "samples": samples}) == 700
    assert typical_cpu_ns(_step("", 250)) == cpu_ns(_step("", 250)) == 250


def test_a_rate_is_clean_only_with_next_to_no_loss_and_a_generator_that_kept_up():
    assert is_clean(_step("x", 1, 20000, received=19999))
    assert not is_clean(_step("x", 1, 20000, received=19990))
    assert not is_clean(_step("x", 1, 20000, offered=21000))
    assert not is_clean(_step("x", 1, 20000, misdelivered=50))
    late = _step("x", 1, 20000, delay={"40": 19990, "900": 10})
    assert bin_edge(900) > 100e6 and not is_clean(late) and what_ended(late) == "delay"
    assert what_ended(_step("x", 1, 20000, received=19000)) == "loss" and what_ended(_step("x", 1, 20000, offered=30000)) == "generator"
    assert (batch_of(1000), batch_of(400_000), batch_of(1e7)) == (1, 20, 64)


def test_mos_falls_with_loss():
    found = {"sent": 2000, "streams": 2, "stream_lost": {"1": [100, 1000]}, "stream_variation_mean": [1000, 1000], "stream_delay_mean": [10_000, 10_000]}
    clean, lossy = mos_of_streams(found)
    assert clean > 4.2 and lossy < clean - 0.5
