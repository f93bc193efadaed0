//! Which receiver's estimate a sender hears: the best downlink (Scallop, section 5.3).
//!
//! A sender obeys the last estimate it hears (browsers do), so it must hear of one downlink only: the best, because layers are dropped for
//! the others.

use crate::tables::Name;
use shunt_latch::Time;
use std::time::Duration;

/// Weight of a new estimate in the EWMA.
const SMOOTHING: f64 = 0.3;
/// Another downlink has to be better by this much,
const LEAD: f64 = 1.1;
/// and for this long.
const HOLD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
struct Downlink {
    receiver: Name,
    average: f64,
    updated: Time,
}

/// For one sender: which receiver's estimate goes on to it.
///
/// Each receiver's estimates are smoothed (EWMA). The chosen one stays until another's average has been better for two seconds without a
/// break, until it leaves, or until it has sent no estimate for `stale`.
#[derive(Clone, Debug)]
pub struct BestDownlink {
    stale: Duration,
    downlinks: Vec<Downlink>,
    chosen: Option<Name>,
    /// Who is better than the chosen one, and since when.
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

    /// A receiver's smoothed estimate, bit/s.
    #[must_use]
    pub fn average(&self, receiver: &str) -> Option<f64> {
        self.downlinks.iter().find(|one| &*one.receiver == receiver).map(|one| one.average)
    }

    /// Take a receiver's estimate in (bit/s); whether it goes on to the sender.
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

    /// A receiver is gone: at once, not when its estimates are stale.
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
