//! Jitter buffers under networks that lose, repeat, reorder and delay, and under clocks that drift. Time is simulated.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use proptest::prelude::*;
use shunt_mix::codec::{Codec, Encoder};
use shunt_mix::jitter::Buffer;
use shunt_mix::{FRAME, RATE};
use std::f64::consts::TAU;

const FRAME_US: f64 = 20_000.0;

/// Packets of a tone.
fn tone(codec: Codec, hz: f64, packets: usize) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(codec).unwrap();
    let block = |number: usize| {
        let mut samples = [0; FRAME];
        for (at, sample) in samples.iter_mut().enumerate() {
            let time = (number * FRAME + at) as f64 / f64::from(RATE);
            *sample = (8000.0 * (TAU * hz * time).sin()) as i16;
        }
        samples
    };
    let made = (0..packets).map(|number| {
        let mut payload = Vec::new();
        encoder.encode(&block(number), &mut payload).unwrap();
        payload
    });
    made.collect()
}

/// What was heard, by frame: whether there was any, and what the buffer added, ms.
struct Heard {
    samples: Vec<i16>,
    frames: Vec<(bool, f64)>,
    buffer: Buffer,
}

/// `network`: of packet `n` when it arrives after it was sent, in µs; several times or none. `pace`: µs of the sender's 20 ms.
fn run(codec: Codec, payloads: &[Vec<u8>], pace: f64, mut network: impl FnMut(usize) -> Vec<f64>) -> Heard {
    let mut arrivals = Vec::new();
    for number in 0..payloads.len() {
        arrivals.extend(
            network(number)
                .into_iter()
                .map(|delay| (5_000_000 + (number as f64 * pace + delay) as u64, number)),
        );
    }
    arrivals.sort_unstable();
    let mut heard = Heard {
        samples: Vec::new(),
        frames: Vec::new(),
        buffer: Buffer::default(),
    };
    let ticks = payloads.len() as f64 * pace / FRAME_US;
    let mut next = 0;
    for tick in 0..ticks as usize {
        let now = 5_007_300 + (tick as f64 * FRAME_US) as u64;
        while let Some((at, number)) = arrivals.get(next).filter(|(at, _)| *at <= now) {
            let timestamp = (*number as u32).wrapping_mul(codec.clock_rate() / 50).wrapping_add(0xFFFF_F000);
            let sequence = (*number as u16).wrapping_add(65_500);
            heard.buffer.arrived(*at, sequence, timestamp, Some(codec), &payloads[*number]);
            next += 1;
        }
        let mut frame = [0; FRAME];
        let any = heard.buffer.pull(now, &mut frame);
        heard.samples.extend(frame);
        heard.frames.push((any, heard.buffer.added() as f64 / 1000.0));
    }
    heard
}

/// The share of a signal that is a tone of this frequency: 1 is all of it.
fn purity(samples: &[i16], hz: f64) -> f64 {
    let mut pure = 0.0;
    let mut all = 1.0;
    for block in samples.chunks_exact(800) {
        let (mut s, mut c) = (0.0, 0.0);
        for (at, sample) in block.iter().enumerate() {
            let angle = TAU * hz * at as f64 / f64::from(RATE);
            s += f64::from(*sample) * angle.sin();
            c += f64::from(*sample) * angle.cos();
            all += f64::from(*sample).powi(2);
        }
        pure += 2.0 * (s * s + c * c) / block.len() as f64;
    }
    pure / all
}

/// Numbers that look random and are the same each time.
fn noise(number: usize) -> f64 {
    let mixed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11) as f64 / (1_u64 << 53) as f64
}

fn added(heard: &Heard, from: usize) -> (f64, f64) {
    let mut all: Vec<f64> = heard.frames[from..]
        .iter()
        .filter(|(any, _)| *any)
        .map(|(_, added)| *added)
        .collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

const CODECS: [Codec; 4] = [Codec::Pcmu, Codec::Pcma, Codec::G722, Codec::Opus];

#[test]
fn a_quiet_network_costs_at_most_thirty_milliseconds() {
    for codec in CODECS {
        let payloads = tone(codec, 400.0, 500);
        let heard = run(codec, &payloads, FRAME_US, |_| vec![0.0]);
        let (_, worst) = added(&heard, 50);
        assert!(worst <= 31.0, "{codec:?}: {worst} ms");
        assert!(purity(&heard.samples[16_000..], 400.0) > 0.97, "{codec:?}");
        assert_eq!((heard.buffer.counts.lost, heard.buffer.counts.late), (0, 0), "{codec:?}");
        assert!(heard.frames[5..].iter().all(|(any, _)| *any), "{codec:?}");
    }
}

#[test]
fn twenty_milliseconds_of_jitter_are_waited_for_and_no_more() {
    let payloads = tone(Codec::Pcma, 400.0, 3000);
    let heard = run(Codec::Pcma, &payloads, FRAME_US, |number| vec![20_000.0 * noise(number)]);
    let (_, worst) = added(&heard, 500);
    assert!(worst <= 60.0, "{worst} ms");
    let counts = heard.buffer.counts;
    assert!(counts.late <= 60, "{counts:?}");
    assert!(
        purity(&heard.samples[160_000..], 400.0) > 0.8,
        "{}",
        purity(&heard.samples[160_000..], 400.0)
    );
}

#[test]
fn a_clock_that_drifts_is_followed_for_ten_minutes() {
    for parts in [-300.0, 300.0] {
        let pace = FRAME_US * (1.0 + parts / 1e6);
        let payloads = tone(Codec::Pcmu, 400.0, 30_000);
        let heard = run(Codec::Pcmu, &payloads, pace, |number| vec![3_000.0 * noise(number)]);
        let (median, worst) = added(&heard, 500);
        assert!(worst <= 60.0, "{parts} parts in a million: {median} and {worst} ms");
        // 300 parts of ten minutes are nine frames.
        let counts = heard.buffer.counts;
        assert!(counts.late + counts.lost <= 60, "{parts}: {counts:?}");
        assert!(counts.concealed <= 60, "{parts}: {counts:?}");
    }
}

#[test]
fn lost_packets_are_concealed() {
    for codec in CODECS {
        let payloads = tone(codec, 250.0, 1000);
        let lost = |number: usize| {
            if noise(number) < 0.05 {
                vec![]
            } else {
                vec![1000.0 * noise(number + 7)]
            }
        };
        let heard = run(codec, &payloads, FRAME_US, lost);
        let counts = heard.buffer.counts;
        assert!((20..=90).contains(&counts.lost), "{codec:?}: {counts:?}");
        let found = purity(&heard.samples[16_000..], 250.0);
        assert!(found > 0.85, "{codec:?}: {found}");
        assert!(heard.frames[10..].iter().all(|(any, _)| *any), "{codec:?} fell silent");
    }
}

#[test]
fn reordered_and_doubled_packets_are_put_right() {
    let payloads = tone(Codec::G722, 400.0, 1000);
    // Every tenth packet comes after the next one, every seventh twice.
    let heard = run(Codec::G722, &payloads, FRAME_US, |number| {
        let delay = if number % 10 == 0 { 22_000.0 } else { 0.0 };
        if number % 7 == 0 {
            vec![delay, delay + 4000.0]
        } else {
            vec![delay]
        }
    });
    let counts = heard.buffer.counts;
    assert!(counts.duplicates + counts.late >= 100, "{counts:?}");
    assert!(counts.lost <= 10, "{counts:?}");
    assert!(purity(&heard.samples[32_000..], 400.0) > 0.9);
}

#[test]
fn a_pause_is_silence_and_what_follows_is_heard() {
    // Discontinuous transmission: sequence numbers go on, timestamps tell the pause.
    for codec in CODECS {
        let payloads = tone(codec, 400.0, 200);
        let mut buffer = Buffer::default();
        let mut spoke = Vec::new();
        for tick in 0..400_u64 {
            let now = 1_000_000 + tick * 20_000;
            if !(100..200).contains(&tick) {
                let number = if tick < 100 { tick } else { tick - 100 };
                let timestamp = tick as u32 * codec.clock_rate() / 50;
                if let Some(payload) = payloads.get(number as usize) {
                    buffer.arrived(now - 5000, number as u16, timestamp, Some(codec), payload);
                }
            }
            spoke.push(buffer.pull(now, &mut [0; FRAME]));
        }
        assert!(spoke[5..100].iter().all(|any| *any), "{codec:?}");
        assert!(spoke[110..199].iter().all(|any| !any), "{codec:?}: the pause is not silent");
        assert!(spoke[205..295].iter().all(|any| *any), "{codec:?}: not heard after the pause");
        assert_eq!(buffer.counts.lost, 0, "{codec:?}");
    }
}

#[test]
fn a_sender_that_begins_anew_is_heard_again() {
    let payloads = tone(Codec::Pcma, 400.0, 100);
    let mut buffer = Buffer::default();
    let mut spoke = Vec::new();
    for tick in 0..200_u64 {
        let now = 1_000_000 + tick * 20_000;
        let (sequence, timestamp) = if tick < 100 {
            (tick as u16, tick as u32 * 160)
        } else {
            (40_000 + tick as u16, 3_000_000_000 + tick as u32 * 160)
        };
        buffer.arrived(now, sequence, timestamp, Some(Codec::Pcma), &payloads[tick as usize % 100]);
        spoke.push(buffer.pull(now, &mut [0; FRAME]));
    }
    assert!(spoke[110..].iter().all(|any| *any));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes, the buffer stays within its bounds, gives 320 samples a frame, and is heard again once the network is quiet.
    #[test]
    fn anything_may_come(
        packets in prop::collection::vec((any::<u16>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..200), 0..4_usize, 0..40_000_u64), 1..300)
    ) {
        let mut buffer = Buffer::default();
        let mut now = 1_000_000;
        for (sequence, timestamp, payload, codec, step) in packets {
            let codec = CODECS.get(codec).copied();
            buffer.arrived(now, sequence, timestamp, codec, &payload);
            now += step;
            buffer.pull(now, &mut [0; FRAME]);
            prop_assert!(buffer.target() <= 120_000);
        }
        let quiet = tone(Codec::Pcmu, 400.0, 600);
        let mut any = false;
        for (number, payload) in quiet.iter().enumerate() {
            now += 20_000;
            buffer.arrived(now, number as u16, number as u32 * 160, Some(Codec::Pcmu), payload);
            any = buffer.pull(now, &mut [0; FRAME]);
        }
        prop_assert!(any);
        prop_assert!(buffer.added() <= 200_000, "{}", buffer.added());
    }
}
