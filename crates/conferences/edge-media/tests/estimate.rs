//! The estimate on paths that are simulated: a bottleneck with a queue, delays and losses; and receivers that are not given the processor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use shunt_edge_media::{Departure, Estimator, Outcome, Pacer, Probe};
use std::time::Duration;

const FIRST: u64 = 1_000_000;
/// Feedback comes so often, µs.
const FEEDBACK: u64 = 50_000;
const STEP: u64 = 1_000;

/// A path: its rate (bit/s), its way (µs), what its queue holds (µs), and the share that it loses.
#[derive(Clone, Copy, Debug)]
struct Path {
    bitrate: f64,
    way: f64,
    queue: f64,
    loss: f64,
}

const FREE: Path = Path {
    bitrate: 1e9,
    way: 10_000.0,
    queue: 1e6,
    loss: 0.0,
};

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % 1_000_000) as f64 / 1e6
    }
}

struct Simulation {
    estimator: Estimator,
    pacer: Pacer,
    random: Random,
    now: u64,
    free_at: f64,
    probing: Option<(Probe, u64, usize, u32)>,
    waiting: Vec<Outcome>,
    told: u64,
    /// Octets of frames that wait.
    queued: u64,
    /// The estimates, one for each 100 ms.
    estimates: Vec<f64>,
    /// Until when the receiver has no processor, µs.
    stalled: f64,
    /// How long it has none, and how often in a second.
    stalls: (f64, f64),
}

impl Simulation {
    fn new(wanted: u64) -> Self {
        let mut estimator = Estimator::new(FIRST);
        estimator.set_wanted(wanted);
        Self {
            estimator,
            pacer: Pacer::default(),
            random: Random(0x9E37_79B9),
            now: 0,
            free_at: 0.0,
            probing: None,
            waiting: Vec::new(),
            told: 0,
            queued: 0,
            estimates: Vec::new(),
            stalled: 0.0,
            stalls: (0.0, 0.0),
        }
    }

    fn send(&mut self, path: &Path, octets: usize) {
        let now = self.now as f64;
        let at = Duration::from_micros(self.now);
        let probe = self.probing.as_ref().map(|probing| probing.0.id);
        self.pacer.sent(octets);
        if let Some(probing) = &mut self.probing {
            probing.2 += octets;
            probing.3 += 1;
        }
        let lost = self.random.next() < path.loss || self.free_at - now > path.queue;
        let mut arrived = None;
        if !lost {
            self.free_at = self.free_at.max(now) + octets as f64 * 8e6 / path.bitrate;
            let jitter = self.random.next() * 300.0;
            arrived = Some(((self.free_at + path.way + jitter).max(self.stalled) / 250.0).floor() as i64 * 250);
        }
        let sent = Departure { at, octets, probe };
        self.waiting.push(Outcome { sent, arrived });
    }

    /// For so many seconds a source sends as much as it may, up to a rate, in 25 frames a second.
    fn run(&mut self, path: &Path, seconds: u64, most: f64) {
        let until = self.now + seconds * 1_000_000;
        while self.now < until {
            let at = Duration::from_micros(self.now);
            if self.now.is_multiple_of(40_000) {
                self.queued += (most.min(self.estimator.estimate() as f64) / 8.0 / 25.0) as u64;
            }
            if self.random.next() < self.stalls.1 * STEP as f64 / 1e6 {
                self.stalled = self.now as f64 + path.way + self.stalls.0 * self.random.next();
            }
            while self.queued > 0 && self.pacer.admits(at, self.estimator.estimate(), self.queued) {
                let octets = self.queued.min(1200);
                self.queued -= octets;
                self.send(path, octets as usize);
            }
            if self.probing.is_none() && self.now > 100_000 {
                self.probing = self.estimator.probe(at).map(|probe| (probe, self.now, 0, 0));
            }
            while let Some((probe, begun, octets, packets)) = self.probing {
                if octets >= probe.octets && packets >= probe.packets {
                    self.probing = None;
                } else if octets == 0 || (octets as f64) < probe.bitrate / 8e6 * (self.now - begun) as f64 {
                    self.send(path, 1200);
                } else {
                    break;
                }
            }
            // What has arrived is told half a round trip later.
            if self.now - self.told >= FEEDBACK {
                self.told = self.now;
                let known = |outcome: &Outcome| match outcome.arrived {
                    Some(arrived) => arrived as f64 + path.way <= self.now as f64,
                    None => outcome.sent.at + Duration::from_micros(2 * path.way as u64) <= at,
                };
                let count = self.waiting.iter().take_while(|outcome| known(outcome)).count();
                let outcomes: Vec<Outcome> = self.waiting.drain(..count).collect();
                self.estimator.feedback(at, Duration::from_micros(2 * path.way as u64), &outcomes);
            }
            if self.now.is_multiple_of(100_000) {
                self.estimates.push(self.estimator.estimate() as f64);
            }
            self.now += STEP;
        }
    }

    /// The mean and the least estimate of the last seconds.
    fn last(&self, seconds: usize) -> (f64, f64) {
        let last = &self.estimates[self.estimates.len() - 10 * seconds..];
        let least = last.iter().copied().fold(f64::INFINITY, f64::min);
        (last.iter().sum::<f64>() / last.len() as f64, least)
    }
}

#[test]
fn a_free_path_is_found_by_probes() {
    let mut simulation = Simulation::new(6_000_000);
    // What is sent is far below what could be: only probes can tell.
    simulation.run(&FREE, 10, 500_000.0);
    let (mean, _) = simulation.last(5);
    assert!(mean > 5_000_000.0, "{mean}");
}

#[test]
fn a_bottleneck_is_filled_and_not_overrun() {
    for bitrate in [300_000.0, 800_000.0, 3_000_000.0, 8_000_000.0] {
        let path = Path { bitrate, ..FREE };
        let mut simulation = Simulation::new(10_000_000);
        simulation.run(&path, 60, 20e6);
        let (mean, _) = simulation.last(30);
        let share = mean / bitrate;
        assert!((0.7..1.1).contains(&share), "{share} of {bitrate}");
        let queue = (simulation.free_at - simulation.now as f64).max(0.0);
        assert!(queue < 300_000.0, "{bitrate}: a queue of {queue} µs");
    }
}

#[test]
fn the_estimate_follows_a_path_that_changes() {
    let mut simulation = Simulation::new(5_000_000);
    let wide = Path {
        bitrate: 3_000_000.0,
        ..FREE
    };
    let narrow = Path {
        bitrate: 500_000.0,
        ..FREE
    };
    simulation.run(&wide, 20, 20e6);
    simulation.run(&narrow, 5, 20e6);
    let (mean, _) = simulation.last(2);
    assert!((250_000.0..550_000.0).contains(&mean), "after 3 s in the narrow path: {mean}");
    simulation.run(&wide, 20, 20e6);
    let (mean, _) = simulation.last(5);
    assert!(mean > 1_800_000.0, "after 15 s in the wide path: {mean}");
}

#[test]
fn a_busy_receiver_is_no_bottleneck() {
    // Stalls of up to 5, 30 and 80 ms, as often as they fit.
    for stalls in [(5_000.0, 60.0), (30_000.0, 15.0), (80_000.0, 6.0)] {
        let mut simulation = Simulation::new(4_000_000);
        simulation.run(&FREE, 10, 2e6);
        let (before, _) = simulation.last(1);
        simulation.stalls = stalls;
        simulation.run(&FREE, 60, 2e6);
        let (_, least) = simulation.last(60);
        assert!(least > 0.9 * before, "stalls {stalls:?}: {least} after {before}");
    }
}

#[test]
fn loss_counts_above_a_tenth_only() {
    let mut simulation = Simulation::new(3_000_000);
    simulation.run(&Path { loss: 0.05, ..FREE }, 20, 1.5e6);
    let (mean, _) = simulation.last(10);
    assert!(mean > 2_000_000.0, "5 %: {mean}");
    simulation.run(&Path { loss: 0.3, ..FREE }, 10, 1.5e6);
    let (mean, _) = simulation.last(3);
    assert!(mean < 1_500_000.0, "30 %: {mean}");
    simulation.run(&FREE, 20, 1.5e6);
    let (mean, _) = simulation.last(3);
    assert!(mean > 2_000_000.0, "none again: {mean}");
}
