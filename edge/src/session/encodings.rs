//! The encodings of one sender's video (simulcast, RFC 8853), of which a browser gets one.

use std::time::{Duration, Instant};

/// An encoding that has been silent for so long is gone.
const GONE: Duration = Duration::from_secs(3);
/// Encodings that are told apart; a browser sends three.
const MOST: usize = 8;
/// An encoding fits where the share is so many times its rate; the one that is sent stays while the share is as much as that.
pub(super) const FITS: f64 = 1.25;
pub(super) const STAYS: f64 = 0.95;
/// Rates are measured over so long.
pub(super) const MEASURED: Duration = Duration::from_millis(900);
/// Which one is to be sent is not changed oftener.
pub(super) const STAY: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
struct Encoding {
    ssrc: u32,
    octets: u64,
    since: Instant,
    last_packet: Instant,
    /// bit/s; `None`: not measured yet.
    rate: Option<f64>,
}

/// What is known of the encodings.
#[derive(Debug, Default)]
pub struct Encodings {
    all: Vec<Encoding>,
    /// The one that is to take the place of the one that is sent, from its next key frame on.
    wanted: Option<u32>,
    chosen: Option<Instant>,
}

impl Encodings {
    /// A packet of an encoding came.
    pub fn packet(&mut self, now: Instant, ssrc: u32, octets: usize) {
        if let Some(one) = self.all.iter_mut().find(|one| one.ssrc == ssrc) {
            one.last_packet = now;
            one.octets += octets as u64;
            let elapsed = now.duration_since(one.since);
            if elapsed >= MEASURED {
                // Octets of a second.
                #[allow(clippy::cast_precision_loss)]
                let rate = one.octets as f64 * 8.0 / elapsed.as_secs_f64();
                (one.rate, one.octets, one.since) = (Some(rate), 0, now);
            }
        } else if self.all.len() < MOST {
            self.all.push(Encoding {
                ssrc,
                octets: octets as u64,
                since: now,
                last_packet: now,
                rate: None,
            });
        }
    }

    /// The encoding that is waited for.
    pub fn wanted(&self) -> Option<u32> {
        self.wanted
    }

    /// Another one is sent now.
    pub fn switched(&mut self) {
        self.wanted = None;
    }

    /// Another sender, or none.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The rate of the lowest one, bit/s, where there are several.
    pub fn least(&self) -> Option<f64> {
        let rates = || self.all.iter().filter_map(|one| one.rate);
        rates().reduce(f64::min).filter(|_| rates().count() > 1)
    }

    /// The rate of the highest one, bit/s.
    pub fn most(&self) -> Option<f64> {
        self.all.iter().filter_map(|one| one.rate).reduce(f64::max)
    }

    /// Choose: the one of the highest rate that fits the share, else the lowest; where no share is known the highest.
    pub fn choose(&mut self, now: Instant, current: u32, share: Option<u64>) {
        self.all.retain(|one| now.duration_since(one.last_packet) < GONE);
        self.wanted = self.wanted.filter(|wanted| self.all.iter().any(|one| one.ssrc == *wanted));
        let mut rates: Vec<(f64, u32)> = self.all.iter().filter_map(|one| Some((one.rate?, one.ssrc))).collect();
        if rates.len() < 2 || self.chosen.is_some_and(|chosen| now.duration_since(chosen) < STAY) {
            return;
        }
        rates.sort_by(|one, other| one.0.total_cmp(&other.0));
        // A share of less than 2^53 bit/s.
        #[allow(clippy::cast_precision_loss)]
        let fits = |rate: f64, ssrc: u32| {
            let factor = if ssrc == current { STAYS } else { FITS };
            share.is_none_or(|share| rate * factor <= share as f64)
        };
        let best = rates.iter().rev().find(|(rate, ssrc)| fits(*rate, *ssrc)).or(rates.first());
        let wanted = best.map(|(_, ssrc)| *ssrc).filter(|ssrc| *ssrc != current);
        if wanted != self.wanted {
            self.wanted = wanted;
            self.chosen = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_that_fits_is_chosen() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut encodings = Encodings::default();
        for ms in (0..2000).step_by(100) {
            for (ssrc, octets) in [(1, 1_250), (2, 5_000), (3, 20_000)] {
                encodings.packet(at(ms), ssrc, octets);
            }
        }
        // 100, 400 and 1,600 kbit/s.
        encodings.choose(at(2000), 1, Some(1_000_000));
        assert_eq!(encodings.wanted(), Some(2));
        encodings.choose(at(2100), 1, Some(5_000_000));
        assert_eq!(encodings.wanted(), Some(2), "it was chosen a moment ago");
        encodings.switched();
        for ms in (2000..6000).step_by(100) {
            for (ssrc, octets) in [(1, 1_250), (2, 5_000), (3, 20_000)] {
                encodings.packet(at(ms), ssrc, octets);
            }
        }
        encodings.choose(at(6000), 2, None);
        assert_eq!(encodings.wanted(), Some(3));
        encodings.choose(at(10_000), 2, Some(1000));
        assert_eq!(encodings.wanted(), None, "all are gone");
    }
}
