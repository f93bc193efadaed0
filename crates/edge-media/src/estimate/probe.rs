//! Probes: for a moment more is sent than is needed, and what arrives of it in which time shows what the path carries.

use crate::transport::Departure;
use std::time::Duration;

/// A probe has so many packets at least, lasts so long, and is over so much later.
const PACKETS: u32 = 5;
const LENGTH: Duration = Duration::from_millis(15);
const OVER: Duration = Duration::from_millis(500);
/// So often a path that carries less than is wanted is tried again, and so long after queues grew.
const AGAIN: Duration = Duration::from_secs(5);
/// The first one is as many times the first estimate, later ones the estimate.
const FIRST: f64 = 3.0;
const NEXT: f64 = 2.0;
/// A probe of which so much arrived is followed by the next one at once.
const CARRIED: f64 = 0.7;
/// Of a path that carries less than it is sent, so much is taken.
const FULL: f64 = 0.9;
const TAKEN: f64 = 0.95;
/// Octets that arrive, of those that are sent, before there is a result.
const ARRIVED: f64 = 0.8;

/// A probe that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Its packets are marked by it ([`Departure::probe`]).
    pub id: u32,
    /// bit/s.
    pub bitrate: f64,
    /// Octets in all, and packets at least.
    pub octets: usize,
    pub packets: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    probe: Probe,
    begun: Duration,
    packets: u32,
    octets: usize,
    /// When the first and the last of those that arrived were sent, and arrived, µs; and the octets of the first and the last.
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
    /// What is to be tried next, at once.
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

    /// The probe that begins now. `calm`: queues do not grow; `fell`: when the estimate fell last.
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
            // What 15 ms hold.
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

    /// A packet arrived.
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

    /// What the probe has found, once enough of it has arrived, bit/s.
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
        // Between the first and the last is what was sent from the first on, and what arrived after the first.
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
