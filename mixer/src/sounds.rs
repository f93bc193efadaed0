//! Sounds that announce who joins or leaves: a tone, or a file of WAV with 16-bit PCM, at the rate of mixes.

use serde::Deserialize;
use shunt_mix::RATE;
use shunt_mix::resample::resample;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// Of a tone: how long it lasts, how long it rises and falls, and how loud it is (the peak, -20 dBov).
const TONE_MS: u32 = 250;
const RAMP_MS: u32 = 10;
const PEAK: f64 = 3277.0;
const PITCH: std::ops::RangeInclusive<u32> = 50..=4000;
/// Of a file.
const RATES: std::ops::RangeInclusive<u32> = 8000..=48_000;
const MOST_S: usize = 10;
const MOST_OCTETS: u64 = 4 << 20;
/// The format of uncompressed samples, and the one that says it further on.
const PCM: u16 = 1;
const EXTENSIBLE: u16 = 0xFFFE;

/// Samples at the rate of mixes.
pub type Sound = Arc<[i16]>;

/// What is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Hz.
    Tone(u32),
    File(PathBuf),
}

#[derive(Debug, Error)]
pub enum SoundError {
    #[error("{0:?} is neither tone:HZ nor the path of a file")]
    Neither(String),
    #[error("a tone of {0} Hz: {low} to {high} are possible", low = PITCH.start(), high = PITCH.end())]
    Pitch(u32),
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    #[error("{0}: {1}")]
    Wav(PathBuf, WavError),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum WavError {
    #[error("it is no WAV file")]
    NoWav,
    #[error("it has no {0} chunk")]
    Lacks(&'static str),
    #[error("its format is {0}, {1} bits: only PCM of 16 bits is played")]
    Format(u16, u16),
    #[error("it has {0} channels: one or two are played")]
    Channels(u16),
    #[error("it has {0} samples a second: {low} to {high} are played", low = RATES.start(), high = RATES.end())]
    Rate(u32),
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MOST_S} s")]
    Long,
}

impl FromStr for Source {
    type Err = SoundError;

    fn from_str(text: &str) -> Result<Self, SoundError> {
        let neither = || SoundError::Neither(text.to_owned());
        match text.strip_prefix("tone:") {
            Some(pitch) => {
                let pitch = pitch.parse().map_err(|_| neither())?;
                if PITCH.contains(&pitch) {
                    Ok(Self::Tone(pitch))
                } else {
                    Err(SoundError::Pitch(pitch))
                }
            }
            None if text.starts_with('/') => Ok(Self::File(text.into())),
            None => Err(neither()),
        }
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Source {
    /// # Errors
    /// It cannot be read, or is none that is played.
    pub fn load(&self) -> Result<Sound, SoundError> {
        let path = match self {
            Self::Tone(pitch) => return Ok(tone(*pitch).into()),
            Self::File(path) => path,
        };
        let fault = |error| SoundError::Read(path.clone(), error);
        let wav = |error| SoundError::Wav(path.clone(), error);
        if std::fs::metadata(path).map_err(fault)?.len() > MOST_OCTETS {
            return Err(wav(WavError::Long));
        }
        let octets = std::fs::read(path).map_err(fault)?;
        read(&octets).map(Into::into).map_err(wav)
    }
}

fn tone(pitch: u32) -> Vec<i16> {
    let (count, ramp) = (RATE * TONE_MS / 1000, RATE * RAMP_MS / 1000);
    let sample = |at: u32| {
        let loud = f64::from(at.min(count - at).min(ramp)) / f64::from(ramp);
        // Within 16 bits.
        (PEAK * loud * (std::f64::consts::TAU * f64::from(pitch) * f64::from(at) / f64::from(RATE)).sin()) as i16
    };
    (0..count).map(sample).collect()
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    octets.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(octets: &[u8], at: usize) -> Option<u32> {
    octets.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// The chunks of a RIFF file; one that is cut ends with the file.
fn chunks(octets: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = octets.get(12..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (name, size) = (rest.get(..4)?, u32_at(rest, 4)? as usize);
        let end = rest.len().min(8 + size);
        let body = rest.get(8..end)?;
        // Chunks begin at even places.
        rest = rest.get(end + size % 2..).unwrap_or_default();
        Some((name, body))
    })
}

/// The samples of a WAV file, one channel, at the rate of mixes.
fn read(octets: &[u8]) -> Result<Vec<i16>, WavError> {
    if octets.get(..4) != Some(b"RIFF") || octets.get(8..12) != Some(b"WAVE") {
        return Err(WavError::NoWav);
    }
    let chunk = |wanted: &'static str| {
        let found = chunks(octets).find(|(name, _)| *name == wanted.as_bytes());
        found.map(|(_, body)| body).ok_or(WavError::Lacks(wanted.trim_end()))
    };
    let format = chunk("fmt ")?;
    let fields = u16_at(format, 0)
        .zip(u16_at(format, 2))
        .zip(u32_at(format, 4))
        .zip(u16_at(format, 14));
    let (((named, channels), rate), bits) = fields.ok_or(WavError::Lacks("fmt"))?;
    // The first two octets of an extensible format's GUID say what it is.
    let kind = if named == EXTENSIBLE {
        u16_at(format, 24).unwrap_or(named)
    } else {
        named
    };
    if kind != PCM || bits != 16 {
        return Err(WavError::Format(kind, bits));
    }
    if !(1..=2).contains(&channels) {
        return Err(WavError::Channels(channels));
    }
    if !RATES.contains(&rate) {
        return Err(WavError::Rate(rate));
    }
    let samples: Vec<i16> = chunk("data")?
        .chunks_exact(2 * usize::from(channels))
        .map(|frame| {
            let sum: i32 = frame
                .chunks_exact(2)
                .map(|sample| i32::from(i16::from_le_bytes([sample[0], sample[1]])))
                .sum();
            // The mean of 16-bit numbers.
            (sum / i32::from(channels)) as i16
        })
        .collect();
    if samples.is_empty() {
        return Err(WavError::Empty);
    }
    if samples.len() > MOST_S * rate as usize {
        return Err(WavError::Long);
    }
    Ok(resample(&samples, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(format: u16, channels: u16, rate: u32, bits: u16, data: &[i16]) -> Vec<u8> {
        let data: Vec<u8> = data.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let mut made = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        made.extend(format.to_le_bytes());
        made.extend(channels.to_le_bytes());
        made.extend(rate.to_le_bytes());
        made.extend((rate * u32::from(channels) * 2).to_le_bytes());
        made.extend((channels * 2).to_le_bytes());
        made.extend(bits.to_le_bytes());
        made.extend(b"data");
        made.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
        made.extend(data);
        made
    }

    #[test]
    fn two_channels_become_one_and_a_rate_another() {
        assert_eq!(read(&wav(PCM, 2, RATE, 16, &[100, 300, -5, 5])), Ok(vec![200, 0]));
        let samples = vec![1000; 4800];
        let made = read(&wav(PCM, 1, 48_000, 16, &samples)).expect("a sound");
        assert_eq!(made.len(), 1600);
        assert!(
            made[100..1500].iter().all(|sample| (990..=1010).contains(sample)),
            "a constant stays what it was"
        );
    }

    #[test]
    fn what_cannot_be_played_says_why() {
        assert_eq!(read(b"ID3 and so on"), Err(WavError::NoWav));
        assert_eq!(read(b"RIFF\0\0\0\0WAVE"), Err(WavError::Lacks("fmt")));
        assert_eq!(read(&wav(7, 1, 8000, 8, &[1])), Err(WavError::Format(7, 8)));
        assert_eq!(read(&wav(PCM, 6, 8000, 16, &[1])), Err(WavError::Channels(6)));
        assert_eq!(read(&wav(PCM, 1, 96_000, 16, &[1])), Err(WavError::Rate(96_000)));
        assert_eq!(read(&wav(PCM, 1, 8000, 16, &[])), Err(WavError::Empty));
        assert_eq!(read(&wav(PCM, 1, 8000, 16, &vec![1; 80_001])), Err(WavError::Long));
        assert!(matches!("tone:9".parse::<Source>(), Err(SoundError::Pitch(9))));
        assert!(matches!("ding".parse::<Source>(), Err(SoundError::Neither(_))));
    }

    #[test]
    fn no_file_is_read_out_of_its_bounds() {
        let whole = wav(PCM, 2, 8000, 16, &[1, 2, 3, 4]);
        for end in 0..whole.len() {
            let _ = read(&whole[..end]);
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] = 0xFF;
            let _ = read(&other);
        }
    }
}
