//! Counters of the whole data plane, summed over the CPUs.

use shunt_abi::relay::{reason, size, totals};
use shunt_xdp::Shared;

/// The name of each reason, in the order of `enum reason` in reasons.h.
const NAMES: [&str; reason::REASON_COUNT.0 as usize] = [
    "relayed",
    "not-ip",
    "not-udp",
    "ip-options",
    "fragment",
    "ttl-expired",
    "malformed",
    "no-checksum",
    "not-unicast",
    "not-media",
    "no-entry",
    "source-mismatch",
    "no-next-hop",
    "too-big-for-output",
    "output-cannot-transmit",
    "no-headroom",
    "entry-changing",
    "over-limit",
    "conference",
    "blocked",
    "other-mac",
];

/// The number of reasons.
pub const REASONS: usize = NAMES.len();

/// Returns the name of a reason for `trace` and the totals.
#[must_use]
pub fn reason_name(number: u32) -> String {
    NAMES
        .get(number as usize)
        .map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// Sums over all CPUs since the maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reasons: [u64; REASONS],
    pub relayed_bytes: u64,
    pub notices: u64,
    pub suppressed: u64,
    /// Notices lost in a full ring.
    pub lost: u64,
}

impl Totals {
    /// Returns the packets that ended for this reason.
    #[must_use]
    pub fn of(&self, why: reason) -> u64 {
        self.reasons.get(why.0 as usize).copied().unwrap_or(0)
    }
}

/// Sums the counters of the CPUs.
#[must_use]
pub fn read_totals(cpus: &Shared<totals>) -> Totals {
    let mut sums = Totals::default();
    for cpu in 0..(size::CPUS.0 as usize).min(cpus.len()) {
        let one = cpus.load(cpu);
        for (sum, count) in sums.reasons.iter_mut().zip(one.reason) {
            *sum = sum.wrapping_add(count);
        }
        sums.relayed_bytes = sums.relayed_bytes.wrapping_add(one.relayed_bytes);
        sums.notices = sums.notices.wrapping_add(one.notices);
        sums.suppressed = sums.suppressed.wrapping_add(one.suppressed);
        sums.lost = sums.lost.wrapping_add(one.lost);
    }
    sums
}
