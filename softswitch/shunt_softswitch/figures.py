"""What the kernel's records say of a stream: packets, bytes, and reception after RFC 3550 (bpf/stats.h)."""

from __future__ import annotations

import numpy as np

from shunt.tables.entry import StreamStats
from shunt_softswitch import layout


def figures(records: np.ndarray, details: np.ndarray, strays: np.ndarray, tick: int) -> list[StreamStats]:
    """What copies of slots and details say. tick: the kernel's, now; strays: packets of other sources, for each of them."""
    idle = idle_ms(records["last_jiffies"], tick)
    received = records["received"] + records["max_seq"]  # modulo 2^32, as the program counts
    packets = (details["packets_high"].astype(np.int64) << layout.COUNTER_BITS) + (records["others"] + received)
    size = (details["bytes_high"].astype(np.int64) << layout.COUNTER_BITS) + records["bytes"]
    expected = details["cycles"].astype(np.int64) + records["max_seq"] - details["base_seq"] + 1
    lost = np.maximum(expected - received, 0) + details["lost_prior"]
    jitter = (details["jitter"] * layout.JITTER_US).astype(np.int64)
    started = (records["rtp_state"] & layout.RTP_STARTED) != 0
    columns = zip(
        packets.tolist(), size.tolist(), idle.tolist(), lost.tolist(), details["reordered"].tolist(),
        details["duplicates"].tolist(), jitter.tolist(), records["ssrc"].tolist(), strays.tolist(), started.tolist(),
    )  # fmt: skip
    return [
        StreamStats(packets, size, idle_ms, miss, late, twice, shake, ssrc, stray)
        if heard
        else StreamStats(packets, size, idle_ms, None, None, None, None, None, stray)
        for packets, size, idle_ms, miss, late, twice, shake, ssrc, stray, heard in columns
    ]


def idle_ms(last_jiffies: np.ndarray, now: int) -> np.ndarray:
    """Milliseconds from each tick to now. Ticks count modulo 2^32; one just ahead of now is now."""
    ticks = np.uint32(now) - last_jiffies
    ticks[ticks > 0xFFFFFF00] = 0
    return (ticks * layout.TICK_MS).astype(np.int64)
