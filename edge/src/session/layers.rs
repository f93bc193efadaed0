//! The rates of one video's spatial layers, and the highest that a browser is to get.

use super::encodings::{FITS, MEASURED, STAY, STAYS};
use shunt_edge_media::ALL_LAYERS;
use std::time::Instant;

/// Spatial layers that are told apart (RFC 9628 has eight).
const MOST: usize = 8;
/// What a new measurement counts for: a key frame is no higher rate.
const WEIGHT: f64 = 0.5;

/// What is known of the layers.
#[derive(Debug, Default)]
pub struct Layers {
    octets: [u64; MOST],
    /// bit/s of each layer alone.
    rates: Option<[f64; MOST]>,
    since: Option<Instant>,
    chosen: Option<Instant>,
}

impl Layers {
    /// A packet of a layer came.
    pub fn packet(&mut self, now: Instant, spatial: u8, octets: usize) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.duration_since(since);
        if elapsed >= MEASURED {
            // What came before a pause says nothing.
            if elapsed < 2 * MEASURED {
                self.measure(elapsed.as_secs_f64());
            }
            (self.octets, self.since) = ([0; MOST], Some(now));
        }
        self.octets[usize::from(spatial).min(MOST - 1)] += octets as u64;
    }

    fn measure(&mut self, seconds: f64) {
        // Octets of a second.
        #[allow(clippy::cast_precision_loss)]
        let new = self.octets.map(|octets| octets as f64 * 8.0 / seconds);
        let rates = self.rates.get_or_insert(new);
        for (rate, new) in rates.iter_mut().zip(new) {
            // A layer that is not sent is not there.
            *rate = if new > 0.0 { *rate + WEIGHT * (new - *rate) } else { 0.0 };
        }
    }

    /// Layers that come, once they have been measured.
    pub fn count(&self) -> usize {
        let rates = self.rates.unwrap_or_default();
        rates.iter().rposition(|rate| *rate > 0.0).map_or(0, |highest| highest + 1)
    }

    /// bit/s of a layer with all below.
    fn needs(&self, spatial: usize) -> f64 {
        self.rates.unwrap_or_default().iter().take(spatial + 1).sum()
    }

    /// The rate of all layers, bit/s.
    pub fn most(&self) -> Option<f64> {
        self.rates.map(|rates| rates.iter().sum())
    }

    /// The rate of the lowest layer, bit/s, where there are several.
    pub fn least(&self) -> Option<f64> {
        (self.count() > 1).then(|| self.needs(0))
    }

    /// The highest layer that is to be sent: the highest that fits the share with all below, else the lowest; all of them where no share is known.
    /// `wanted`: that so far. It rises only a while after it changed last, since that takes a key frame of the sender.
    pub fn choose(&mut self, now: Instant, wanted: u8, share: Option<u64>) -> u8 {
        let count = self.count();
        if count < 2 {
            return ALL_LAYERS;
        }
        // A share of less than 2^53 bit/s.
        #[allow(clippy::cast_precision_loss)]
        let fits = |spatial: usize| {
            let factor = if spatial == usize::from(wanted).min(count - 1) {
                STAYS
            } else {
                FITS
            };
            share.is_none_or(|share| self.needs(spatial) * factor <= share as f64)
        };
        let best = (0..count).rev().find(|spatial| fits(*spatial)).unwrap_or(0);
        // Less than MOST.
        #[allow(clippy::cast_possible_truncation)]
        let best = if best + 1 == count { ALL_LAYERS } else { best as u8 };
        let soon = self.chosen.is_some_and(|chosen| now.duration_since(chosen) < STAY);
        if best == wanted || best > wanted && soon {
            return wanted;
        }
        self.chosen = Some(now);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Layers of 100, 300 and 1,200 kbit/s from `from` to `to`, in milliseconds.
    fn sent(layers: &mut Layers, start: Instant, from: u64, to: u64) {
        for ms in (from..to).step_by(100) {
            for (spatial, octets) in [(0, 1_250), (1, 3_750), (2, 15_000)] {
                layers.packet(start + Duration::from_millis(ms), spatial, octets);
            }
        }
    }

    #[test]
    fn the_highest_that_fits_is_chosen_and_down_at_once() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut layers = Layers::default();
        assert_eq!(layers.choose(at(0), ALL_LAYERS, Some(1)), ALL_LAYERS, "nothing is known yet");
        sent(&mut layers, start, 0, 2000);
        assert_eq!((layers.count(), layers.least()), (3, Some(100_000.0)));
        assert_eq!(
            layers.choose(at(2000), ALL_LAYERS, Some(1_520_000)),
            ALL_LAYERS,
            "what is sent stays while it nearly fits"
        );
        assert_eq!(layers.choose(at(2000), ALL_LAYERS, Some(1_500_000)), 1);
        assert_eq!(layers.choose(at(2500), 1, Some(90_000)), 0);
        assert_eq!(layers.choose(at(3000), 0, Some(5_000_000)), 0, "it was chosen a moment ago");
        assert_eq!(layers.choose(at(5500), 0, Some(1_900_000)), 1, "1.25 times is wanted to go up");
        assert_eq!(layers.choose(at(9000), 1, None), ALL_LAYERS);
    }

    #[test]
    fn a_pause_is_no_rate_and_a_layer_that_ends_is_gone() {
        let start = Instant::now();
        let mut layers = Layers::default();
        sent(&mut layers, start, 0, 2000);
        sent(&mut layers, start, 30_000, 30_800);
        assert_eq!(layers.least(), Some(100_000.0));
        for ms in (31_000..34_000).step_by(100) {
            layers.packet(start + Duration::from_millis(ms), 0, 1_250);
        }
        assert_eq!((layers.count(), layers.least()), (1, None));
    }
}
