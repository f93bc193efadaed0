//! How long packets have to wait, by how late they have come: the network's jitter, without the clock of the sender.

/// Packets that are looked back on: four seconds of 20 ms.
const KEPT: usize = 200;
/// The earliest of so many packets, so many times over, is what the network takes at least. A clock that drifts moves it along.
const WINDOW: usize = 50;
const WINDOWS: usize = 6;
/// Between two looks at all of them, packets.
const LOOK_EVERY: usize = 10;
/// Packets that may come later than what is waited for, of a hundred.
const LATE: usize = 3;

/// Two packets whose transits differ by that much are of other beginnings: timestamps have jumped.
const BEYOND: u64 = 1_000_000;

/// All times in µs. A packet's transit is when it came less its timestamp: only differences of it mean anything.
#[derive(Clone, Debug, Default)]
pub struct Delay {
    transits: std::collections::VecDeque<i64>,
    minima: std::collections::VecDeque<i64>,
    current: Option<i64>,
    seen: usize,
    jitter: i64,
}

impl Delay {
    pub fn arrived(&mut self, transit: i64) {
        if self.transits.back().is_some_and(|last| last.abs_diff(transit) > BEYOND) {
            *self = Self::default();
        }
        self.current = Some(self.current.map_or(transit, |current| current.min(transit)));
        self.transits.push_back(transit);
        if self.transits.len() > KEPT {
            self.transits.pop_front();
        }
        self.seen += 1;
        if self.seen.is_multiple_of(WINDOW) {
            self.minima.extend(self.current.take());
            if self.minima.len() > WINDOWS {
                self.minima.pop_front();
            }
        }
        if self.seen.is_multiple_of(LOOK_EVERY) {
            let mut sorted: Vec<i64> = self.transits.iter().copied().collect();
            sorted.sort_unstable();
            let at = sorted.len().saturating_sub(1 + sorted.len() * LATE / 100);
            let late = sorted.get(at).copied().unwrap_or_default();
            self.jitter = (late - self.least()).max(0);
        }
    }

    /// The least transit of late.
    #[must_use]
    pub fn least(&self) -> i64 {
        self.minima.iter().copied().chain(self.current).min().unwrap_or_default()
    }

    /// How much later than the earliest all but a few packets come.
    #[must_use]
    pub fn jitter(&self) -> i64 {
        self.jitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_what_all_but_a_few_stay_within() {
        let mut delay = Delay::default();
        for at in 0..400_i64 {
            delay.arrived(1_000_000 + at % 10 * 3_000);
        }
        assert_eq!((delay.least(), delay.jitter()), (1_000_000, 27_000));
        for at in 0..400_i64 {
            // One of a hundred is half a second late.
            delay.arrived(1_000_000 + if at % 100 == 0 { 500_000 } else { 0 });
        }
        assert_eq!(delay.jitter(), 0);
    }

    #[test]
    fn the_least_follows_a_clock_that_drifts() {
        let mut delay = Delay::default();
        for at in 0..30_000_i64 {
            // 200 parts in a million of 20 ms.
            delay.arrived(at * 4);
        }
        assert!(delay.least() > 29_600 * 4, "{}", delay.least());
        assert!(delay.jitter() < 2_000, "{}", delay.jitter());
    }
}
