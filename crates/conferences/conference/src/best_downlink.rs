//! Selects the receiver whose estimate is forwarded to a sender: the best downlink (Scallop, section 5.3).
//!
//! Browsers obey the last estimate that they receive. A sender must therefore get the estimates of only one downlink, the best one; the
//! data plane drops layers for the other receivers.

use crate::tables::Name;
use shunt_latch::Time;
use std::time::Duration;

/// Weight of a new estimate in the EWMA.
const SMOOTHING: f64 = 0.3;
/// Factor by which another downlink must be better.
const LEAD: f64 = 1.1;
/// How long another downlink must stay better.
const HOLD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
struct Downlink {
    receiver: Name,
    average: f64,
    updated: Time,
}

/// Selects the receiver whose estimates are forwarded to one sender.
///
/// Each receiver's estimates are smoothed (EWMA). The selected receiver stays until another one's average has been higher for two seconds
/// without interruption, until it leaves, or until it has sent no estimate for `stale`.
#[derive(Clone, Debug)]
pub struct BestDownlink {
    stale: Duration,
    downlinks: Vec<Downlink>,
    chosen: Option<Name>,
    /// The receiver that is better than the selected one, and since when.
    leading: Option<(Name, Time)>,
}

impl BestDownlink {
    #[must_use]
    pub fn new(stale: Duration) -> Self {
        Self {
            stale,
            downlinks: Vec::new(),
            chosen: None,
            leading: None,
        }
    }

    #[must_use]
    pub fn chosen(&self) -> Option<&Name> {
        self.chosen.as_ref()
    }

    /// Returns a receiver's smoothed estimate, bit/s.
    #[must_use]
    pub fn average(&self, receiver: &str) -> Option<f64> {
        self.downlinks.iter().find(|one| &*one.receiver == receiver).map(|one| one.average)
    }

    /// Records a receiver's estimate (bit/s). Returns whether to forward it to the sender.
    pub fn estimate(&mut self, receiver: &Name, bitrate: f64, now: Time) -> bool {
        match self.downlinks.iter_mut().find(|one| one.receiver == *receiver) {
            Some(one) => {
                let anew = now.since(one.updated) > self.stale;
                one.average = if anew {
                    bitrate
                } else {
                    one.average + SMOOTHING * (bitrate - one.average)
                };
                one.updated = now;
            }
            None => self.downlinks.push(Downlink {
                receiver: receiver.clone(),
                average: bitrate,
                updated: now,
            }),
        }
        self.choose(now);
        self.chosen.as_ref() == Some(receiver)
    }

    /// Removes a receiver at once, without waiting until its estimates are stale.
    pub fn leave(&mut self, receiver: &str, now: Time) {
        self.downlinks.retain(|one| &*one.receiver != receiver);
        if self.chosen.as_deref() == Some(receiver) {
            (self.chosen, self.leading) = (None, None);
            self.choose(now);
        }
    }

    fn choose(&mut self, now: Time) {
        let stale = self.stale;
        self.downlinks.retain(|one| now.since(one.updated) <= stale);
        let Some(best) = self
            .downlinks
            .iter()
            .reduce(|best, one| if one.average > best.average { one } else { best })
        else {
            (self.chosen, self.leading) = (None, None);
            return;
        };
        let current = self
            .chosen
            .as_ref()
            .and_then(|chosen| self.downlinks.iter().find(|one| one.receiver == *chosen));
        let Some(current) = current else {
            (self.chosen, self.leading) = (Some(best.receiver.clone()), None);
            return;
        };
        if best.receiver == current.receiver || best.average < LEAD * current.average {
            self.leading = None;
            return;
        }
        match &self.leading {
            Some((name, since)) if *name == best.receiver => {
                if now.since(*since) >= HOLD {
                    (self.chosen, self.leading) = (Some(best.receiver.clone()), None);
                }
            }
            _ => self.leading = Some((best.receiver.clone(), now)),
        }
    }
}
