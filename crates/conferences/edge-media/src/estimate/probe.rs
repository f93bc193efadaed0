//! Probes: more than necessary is sent for a moment, and the arrival shows the path's capacity.

use crate::transport::Departure;
use std::time::Duration;

/// Minimum packets of a probe, its duration, and its deadline after that.
const PACKETS: u32 = 5;
const LENGTH: Duration = Duration::from_millis(15);
const OVER: Duration = Duration::from_millis(500);
/// How often a path with less than the wanted rate is tried again, and the pause after queues grew.
const AGAIN: Duration = Duration::from_secs(5);
/// Factors: the first probe is this multiple of the first estimate, later ones of the estimate.
const FIRST: f64 = 3.0;
const NEXT: f64 = 2.0;
/// Share that must arrive for the next probe to follow at once.
const CARRIED: f64 = 0.7;
/// Share of the measured rate to use, if the path carried less than was sent.
const FULL: f64 = 0.9;
const TAKEN: f64 = 0.95;
/// Share of the octets that must arrive for a result.
const ARRIVED: f64 = 0.8;

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Marks its packets ([`Departure::probe`]).
    pub id: u32,
    /// bit/s.
    pub bitrate: f64,
    /// Minimum octets and packets in total.
    pub octets: usize,
    pub packets: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    probe: Probe,
    begun: Duration,
    packets: u32,
    octets: usize,
    /// First and last arrived packet: times of sending and of arrival, µs, and octets.
    sent: (i64, i64),
    arrived: (i64, i64),
    first: usize,
    last: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    next_id: u32,
    next: Duration,
    current: Option<Sent>,
    /// The next rate to try at once.
    follow: Option<f64>,
}

/// Octets of a probe, and µs.
#[allow(clippy::cast_precision_loss)]
fn bitrate(octets: usize, time: i64) -> f64 {
    octets as f64 * 8.0 / (time as f64 / 1e6)
}

impl Probes {
    pub(super) fn next(&self) -> Duration {
        if self.follow.is_some() { Duration::ZERO } else { self.next }
    }

    /// Returns the probe that begins now. `calm`: queues do not grow; `fell`: when the estimate last fell.
    pub(super) fn begin(&mut self, now: Duration, estimate: f64, wanted: f64, calm: bool, fell: Option<Duration>) -> Option<Probe> {
        let follow = self.follow.take();
        let due = follow.is_some() || now >= self.next;
        let lately = fell.is_some_and(|fell| now.saturating_sub(fell) < AGAIN);
        if estimate >= wanted || !due {
            return None;
        }
        self.next = now + AGAIN;
        if !calm || lately {
            return None;
        }
        let first = if self.next_id == 0 { FIRST } else { NEXT };
        let target = follow.unwrap_or(estimate * first).min(wanted);
        let octets = target / 8.0 * LENGTH.as_secs_f64();
        let probe = Probe {
            id: self.next_id,
            bitrate: target,
            // Content of 15 ms.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            octets: octets as usize,
            packets: PACKETS,
        };
        self.next_id += 1;
        self.current = Some(Sent {
            probe,
            begun: now,
            packets: 0,
            octets: 0,
            sent: (i64::MAX, i64::MIN),
            arrived: (i64::MAX, i64::MIN),
            first: 0,
            last: 0,
        });
        Some(probe)
    }

    /// Processes an arrived packet.
    pub(super) fn arrived(&mut self, departure: &Departure, arrived: i64) {
        let Some(current) = self.current.as_mut().filter(|current| departure.probe == Some(current.probe.id)) else {
            return;
        };
        let sent = i64::try_from(departure.at.as_micros()).unwrap_or(i64::MAX);
        current.packets += 1;
        current.octets += departure.octets;
        if arrived < current.arrived.0 {
            (current.arrived.0, current.first) = (arrived, departure.octets);
        }
        if sent >= current.sent.1 {
            current.last = departure.octets;
        }
        current.arrived.1 = current.arrived.1.max(arrived);
        current.sent = (current.sent.0.min(sent), current.sent.1.max(sent));
    }

    /// Returns the result of the probe once enough of it has arrived, bit/s.
    pub(super) fn result(&mut self, now: Duration, wanted: f64) -> Option<f64> {
        let current = self.current?;
        // Octets of a probe.
        #[allow(clippy::cast_precision_loss)]
        let enough = current.octets as f64 >= current.probe.octets as f64 * ARRIVED && current.packets >= current.probe.packets - 1;
        if !enough {
            if now.saturating_sub(current.begun) > OVER {
                self.current = None;
            }
            return None;
        }
        self.current = None;
        let (sent, arrived) = (current.sent.1 - current.sent.0, current.arrived.1 - current.arrived.0);
        if sent <= 0 {
            return None;
        }
        // Sent between first and last: all but the last. Arrived: all but the first.
        let out = bitrate(current.octets - current.last, sent);
        let through = if arrived > 0 {
            bitrate(current.octets - current.first, arrived)
        } else {
            f64::INFINITY
        };
        let mut found = out.min(through).min(current.probe.bitrate);
        if through < FULL * out {
            found = TAKEN * through;
        }
        if found >= CARRIED * current.probe.bitrate && current.probe.bitrate < wanted {
            self.follow = Some((NEXT * found).min(wanted));
        }
        Some(found)
    }
}
