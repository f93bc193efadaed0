//! While a stream is contested nobody is latched, and who sends as fast as media does is relayed. A port scanner comes by less often, so it
//! neither gets media nor is its own passed on.

use shunt_latch::Time;
use shunt_net::Endpoint;

const SOURCES: usize = 16;
/// Packets, each worth half after a second: speech in packets of 20 ms has so many after 0.2 s, and 7 packets per second never have.
const FAST: f32 = 10.0;

#[derive(Clone, Copy, Debug)]
struct Source {
    endpoint: Endpoint,
    packets: f32,
    last: Time,
}

impl Source {
    fn packets(&self, now: Time) -> f32 {
        self.packets * (-now.since(self.last).as_secs_f32()).exp2()
    }
}

/// How fast the sources at one port send.
#[derive(Debug, Default)]
pub struct Contest {
    sources: Vec<Source>,
    chosen: Option<Endpoint>,
}

impl Contest {
    /// Count a packet; whether its source sends as fast as media does.
    pub fn count(&mut self, now: Time, endpoint: Endpoint) -> bool {
        let known = self.sources.iter().position(|source| source.endpoint == endpoint);
        let packets = known.map_or(0.0, |at| self.sources.swap_remove(at).packets(now)) + 1.0;
        if self.sources.len() >= SOURCES {
            let slowest = (0..SOURCES).min_by(|one, other| {
                let packets = |at: usize| self.sources[at].packets(now);
                packets(*one).total_cmp(&packets(*other))
            });
            if let Some(slowest) = slowest {
                self.sources.swap_remove(slowest);
            }
        }
        let last = now;
        self.sources.push(Source { endpoint, packets, last });
        packets >= FAST
    }

    /// Whether the other party's packets are to go to this fast source from now on: the first that is fast alone. It stays: with a rival as
    /// fast as it is, nobody can tell who is the party.
    pub fn choose(&mut self, now: Time, endpoint: Endpoint) -> bool {
        let alone = self
            .sources
            .iter()
            .all(|source| source.endpoint == endpoint || source.packets(now) < FAST);
        if self.chosen.is_some() || !alone {
            return false;
        }
        self.chosen = Some(endpoint);
        true
    }

    /// The contest is over.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn media_is_fast_and_a_scanner_is_not_however_many_there_are() {
        let mut contest = Contest::default();
        let (party, at) = (Endpoint::new([10, 0, 0, 1], 5000), |ms: u64| Time::from(Duration::from_millis(ms)));
        let mut first = None;
        for ms in (0..3000).step_by(20) {
            if contest.count(at(ms), party) {
                first.get_or_insert(ms);
            }
            assert!(!contest.count(at(ms), Endpoint::new([10, 0, 0, 2], u16::try_from(ms).unwrap())));
            if ms % 240 == 0 {
                assert!(!contest.count(at(ms), Endpoint::new([10, 0, 0, 3], 1)));
            }
        }
        assert!(first.is_some_and(|ms| ms <= 240), "{first:?}");
        assert_eq!(contest.sources.len(), SOURCES);
        assert!(contest.choose(at(3000), party) && !contest.choose(at(3000), party));
    }

    #[test]
    fn nobody_is_chosen_among_equals_and_who_is_chosen_stays() {
        let mut contest = Contest::default();
        let (one, other) = (Endpoint::new([10, 0, 0, 1], 5000), Endpoint::new([10, 0, 0, 2], 5000));
        let at = |ms: u64| Time::from(Duration::from_millis(ms));
        for ms in (0..1000).step_by(20) {
            contest.count(at(ms), one);
            contest.count(at(ms), other);
        }
        assert!(!contest.choose(at(1000), one) && !contest.choose(at(1000), other));
        for ms in (1000..6000).step_by(20) {
            contest.count(at(ms), one);
        }
        assert!(contest.choose(at(6000), one));
        for ms in (6000..16_000).step_by(20) {
            contest.count(at(ms), other);
        }
        assert!(!contest.choose(at(16_000), other));
    }
}
