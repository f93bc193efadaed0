//! Concealment for codecs that have none of their own, as G.711 Appendix I does it: the last pitch period is repeated, and fades. And the same the other way round:
//! a pitch period taken out, so that what waits gets shorter.

use crate::RATE;

const MS: usize = RATE as usize / 1000;
/// Pitch periods that are looked for: 66 to 200 Hz, as Appendix I has them.
const SHORTEST: usize = 5 * MS;
const LONGEST: usize = 15 * MS;
/// Samples that are compared.
const WINDOW: usize = 20 * MS;
/// Samples over which one sound becomes another.
const FADE: usize = 4 * MS;
const HISTORY: usize = WINDOW + LONGEST + FADE;
/// Full for the first 10 ms, and gone after 60.
const FULL: usize = 10 * MS;
const GONE: usize = 60 * MS;

/// The lag at which a signal is most like itself a moment before, of those from `SHORTEST` to `LONGEST`; every second sample is compared.
fn pitch(history: &[i16]) -> usize {
    let end = history.len();
    let recent = &history[end - WINDOW..];
    let score = |lag: usize| {
        let earlier = &history[end - WINDOW - lag..end - lag];
        let (mut product, mut energy) = (0.0_f32, 1.0_f32);
        for (a, b) in recent.iter().zip(earlier).step_by(2) {
            let (a, b) = (f32::from(*a), f32::from(*b));
            product += a * b;
            energy += b * b;
        }
        product.max(0.0) * product / energy
    };
    let coarse = (SHORTEST..=LONGEST).step_by(4).map(|lag| (score(lag), lag));
    let best = coarse.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(LONGEST, |(_, lag)| lag);
    let near = best.saturating_sub(3).max(SHORTEST)..=(best + 3).min(LONGEST);
    near.map(|lag| (score(lag), lag))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(best, |(_, lag)| lag)
}

/// `from` becomes `to` within as many samples as there are in `to`.
fn fade(from: impl Iterator<Item = i16>, to: &mut [i16]) {
    let steps = to.len() as f32;
    for (at, (a, b)) in from.zip(to).enumerate() {
        let share = (at as f32 + 0.5) / steps;
        *b = (f32::from(a) * (1.0 - share) + f32::from(*b) * share) as i16;
    }
}

#[derive(Clone, Debug, Default)]
pub struct Concealer {
    /// The last good samples, and what was concealed since.
    history: Vec<i16>,
    /// Samples concealed since the last good ones.
    concealed: usize,
    /// The pitch period that is repeated, and where in it the next sample is.
    period: Vec<i16>,
    at: usize,
}

impl Concealer {
    /// Samples that were decoded. The first ones after a gap are faded in.
    pub fn good(&mut self, samples: &mut [i16]) {
        if self.concealed > 0 {
            let mut going_on = [0; FADE];
            let count = FADE.min(samples.len());
            self.repeat(&mut going_on[..count]);
            fade(going_on.into_iter(), &mut samples[..count]);
            self.concealed = 0;
        }
        self.keep(samples);
    }

    /// Samples in place of lost ones.
    pub fn lost(&mut self, samples: &mut [i16]) {
        if self.history.len() < HISTORY {
            samples.fill(0);
            return;
        }
        if self.concealed == 0 {
            let lag = pitch(&self.history);
            let end = self.history.len();
            self.period = self.history[end - lag..].to_vec();
            // The end of the period leads over to its beginning.
            let lead = FADE.min(lag / 2);
            let before: Vec<i16> = self.history[end - lag - lead..end - lag].to_vec();
            let tail = &mut self.period[lag - lead..];
            let own: Vec<i16> = tail.to_vec();
            tail.copy_from_slice(&before);
            fade(own.into_iter(), tail);
            self.at = 0;
        }
        self.repeat(samples);
        self.keep(samples);
    }

    fn repeat(&mut self, samples: &mut [i16]) {
        for sample in samples {
            let beyond = self.concealed.saturating_sub(FULL).min(GONE - FULL) as f32;
            let gain = 1.0 - beyond / (GONE - FULL) as f32;
            let value = self.period.get(self.at).copied().unwrap_or(0);
            *sample = (f32::from(value) * gain) as i16;
            self.at = if self.at + 1 < self.period.len() { self.at + 1 } else { 0 };
            self.concealed += 1;
        }
    }

    fn keep(&mut self, samples: &[i16]) {
        self.history.extend_from_slice(samples);
        let over = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..over);
    }
}

/// Take a pitch period of at most `most` samples out; returns how many samples went. Too short ones stay whole.
pub fn shorten(samples: &mut Vec<i16>, most: usize) -> usize {
    if most < SHORTEST || samples.len() < WINDOW + SHORTEST {
        return 0;
    }
    // Reversed in time the search is the same: the beginning is compared with what comes a lag later.
    let longest = LONGEST.min(most).min(samples.len() - WINDOW);
    let score = |lag: usize| {
        let (mut product, mut energy) = (0.0_f32, 1.0_f32);
        for (a, b) in samples[..WINDOW].iter().zip(&samples[lag..]).step_by(2) {
            let (a, b) = (f32::from(*a), f32::from(*b));
            product += a * b;
            energy += b * b;
        }
        product.max(0.0) * product / energy
    };
    let found = (SHORTEST..=longest).step_by(2).map(|lag| (score(lag), lag));
    let lag = found.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(longest, |(_, lag)| lag);
    let overlap = WINDOW.min(samples.len() - lag);
    let mut joined = samples[lag..lag + overlap].to_vec();
    fade(samples[..overlap].iter().copied(), &mut joined);
    samples[lag..lag + overlap].copy_from_slice(&joined);
    samples.drain(..lag);
    lag
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn tone(hz: f64, count: usize) -> Vec<i16> {
        (0..count)
            .map(|at| (8000.0 * (TAU * hz * at as f64 / f64::from(RATE)).sin()) as i16)
            .collect()
    }

    fn loudness(samples: &[i16]) -> f64 {
        (samples.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / samples.len() as f64).sqrt()
    }

    #[test]
    fn a_lost_packet_of_a_tone_is_the_tone_and_a_long_gap_is_silence() {
        let mut whole = tone(150.0, 6400);
        let expected = whole[3200..3520].to_vec();
        let mut concealer = Concealer::default();
        concealer.good(&mut whole[..3200]);
        let mut made = vec![0; 320];
        concealer.lost(&mut made);
        let error: Vec<i16> = made.iter().zip(&expected).map(|(a, b)| a - b).collect();
        assert!(loudness(&error) < 0.35 * loudness(&expected), "{}", loudness(&error));
        let mut later = vec![1; 1600];
        concealer.lost(&mut later);
        assert!(later[1000..].iter().all(|sample| *sample == 0));
    }

    #[test]
    fn shortening_takes_whole_periods() {
        let mut samples = tone(200.0, 960);
        let gone = shorten(&mut samples, 240);
        assert!(gone >= SHORTEST && samples.len() + gone == 960, "{gone}");
        // 200 Hz: 80 samples a period.
        let off = gone % 80;
        assert!(off.min(80 - off) <= 2, "{gone}");
        assert!((loudness(&samples) - loudness(&tone(200.0, 960))).abs() < 300.0);
    }
}
