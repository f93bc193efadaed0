//! Groups of packets that were sent together, and the rate of arrival.

use std::collections::VecDeque;
use std::time::Duration;

/// Packets sent within this time are one group, µs (draft-ietf-rmcat-gcc-02 section 4.1).
const BURST: i64 = 5_000;
/// A group that arrives directly after another one, as after a stall of the path, joins that one, up to this time.
const LONGEST: i64 = 100_000;
/// The window of the rate, µs, which is known after half of it.
const MEASURED: i64 = 500_000;

/// A group compared with the one before it, ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) arrived: f64,
    /// Difference of arrival minus difference of sending.
    pub(super) delay: f64,
    /// Its transit time, up to a constant.
    pub(super) way: f64,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    first_sent: i64,
    last_sent: i64,
    first_arrived: i64,
    last_arrived: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    before: Option<Current>,
    current: Option<Current>,
}

fn us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Of less than 2^53 µs.
#[allow(clippy::cast_precision_loss)]
fn ms(time: i64) -> f64 {
    time as f64 / 1000.0
}

impl Current {
    fn new(sent: i64, arrived: i64) -> Self {
        Self {
            first_sent: sent,
            last_sent: sent,
            first_arrived: arrived,
            last_arrived: arrived,
        }
    }

    fn takes(&self, sent: i64, arrived: i64) -> bool {
        let gap = arrived - self.last_arrived;
        let catches_up = gap < sent - self.last_sent && gap <= BURST && arrived - self.first_arrived < LONGEST;
        sent - self.first_sent <= BURST || catches_up
    }
}

impl Arrivals {
    /// Adds an arrived packet, in µs of the browser's clock. Returns the group that it ends, if it begins another one.
    pub(super) fn packet(&mut self, sent: Duration, arrived: i64) -> Option<Group> {
        let sent = us(sent);
        let Some(current) = &mut self.current else {
            self.current = Some(Current::new(sent, arrived));
            return None;
        };
        if sent < current.first_sent {
            return None;
        }
        if current.takes(sent, arrived) {
            current.last_sent = current.last_sent.max(sent);
            current.last_arrived = current.last_arrived.max(arrived);
            return None;
        }
        let ended = std::mem::replace(current, Current::new(sent, arrived));
        let before = self.before.replace(ended)?;
        Some(Group {
            arrived: ms(ended.last_arrived),
            delay: ms((ended.last_arrived - before.last_arrived) - (ended.last_sent - before.last_sent)),
            way: ms(ended.last_arrived - ended.last_sent),
        })
    }
}

/// Recent arrivals.
#[derive(Clone, Debug, Default)]
pub(super) struct Throughput {
    packets: VecDeque<(i64, usize)>,
    octets: usize,
    first: Option<i64>,
}

impl Throughput {
    pub(super) fn packet(&mut self, arrived: i64, octets: usize) {
        self.first.get_or_insert(arrived);
        self.packets.push_back((arrived, octets));
        self.octets += octets;
        while let Some((at, octets)) = self.packets.front().copied().filter(|(at, _)| arrived - at > MEASURED) {
            debug_assert!(at < arrived);
            self.packets.pop_front();
            self.octets -= octets;
        }
    }

    /// bit/s; `None` before it was measured.
    pub(super) fn bitrate(&self) -> Option<f64> {
        let (last, _) = self.packets.back()?;
        let elapsed = (last - self.first?).min(MEASURED);
        // Octets of one second.
        #[allow(clippy::cast_precision_loss)]
        let bits = self.octets as f64 * 8.0;
        (elapsed >= MEASURED / 2).then(|| bits / (ms(elapsed) / 1000.0))
    }
}
