//! The clocks that programs and user space share.

use nix::time::{ClockId, clock_getres, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds, as bpf_ktime_get_ns() reads it.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, nanoseconds)
}

/// CLOCK_MONOTONIC as of the last tick, as bpf_ktime_get_coarse_ns() reads it.
#[must_use]
pub fn monotonic_coarse_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, nanoseconds)
}

/// The kernel's tick in milliseconds: the coarse clock advances with it.
#[must_use]
pub fn tick_ms() -> f64 {
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(4.0, |tick| nanoseconds(tick) as f64 / 1e6)
}

fn nanoseconds(time: nix::sys::time::TimeSpec) -> u64 {
    u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
}
