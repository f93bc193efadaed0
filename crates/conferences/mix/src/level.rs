//! Levels of audio in dBov (RFC 6464 section 3), and who speaks.

/// Below that is silence, whatever the noise: dBov.
const FLOOR: f32 = -70.0;
/// Louder than that is speech, whatever the noise.
const LOUD: f32 = -45.0;
/// Speech is that much louder than the noise, dB.
const ABOVE: f32 = 9.0;
/// The noise is let rise by that much in a frame, dB.
const RISE: f32 = 0.02;
/// Frames that belong to speech after its last loud one: 200 ms.
const HANGOVER: u32 = 10;
/// The share of a new frame in the level that speakers are compared by.
const SHARE: f32 = 0.1;

/// The level of samples: 0 is the loudest there is, -127 is silence.
#[must_use]
pub fn dbov(samples: &[i16]) -> f32 {
    let energy: f32 = samples.iter().map(|sample| f32::from(*sample) * f32::from(*sample)).sum();
    let mean = energy / (samples.len().max(1) as f32) / (32_768.0 * 32_768.0);
    if mean <= 0.0 {
        -127.0
    } else {
        (10.0 * mean.log10()).clamp(-127.0, 0.0)
    }
}

/// A level as header extensions have it: -dBov in seven bits.
#[must_use]
pub fn octet(level: f32) -> u8 {
    // Clamped, so it fits.
    (-level).round().clamp(0.0, 127.0) as u8
}

/// What the sender says of a packet (RFC 6464): its level in dBov, and whether it holds it for voice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    pub level: f32,
    pub voice: bool,
}

impl Told {
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let first = *data.first()?;
        Some(Self {
            level: -f32::from(first & 0x7F),
            voice: first & 0x80 != 0,
        })
    }
}

/// Whether one sender speaks.
#[derive(Clone, Debug)]
pub struct Activity {
    noise: f32,
    hangover: u32,
    /// Of the last frame.
    pub level: f32,
    /// Over some frames.
    pub smooth: f32,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            noise: -60.0,
            hangover: 0,
            level: -127.0,
            smooth: -127.0,
        }
    }
}

impl Activity {
    /// A frame; whether it is of speech.
    pub fn frame(&mut self, samples: &[i16], told: Option<Told>) -> bool {
        self.level = dbov(samples);
        self.smooth += SHARE * (self.level - self.smooth);
        self.noise = (self.noise + RISE).min(self.level).clamp(-90.0, LOUD - ABOVE);
        let own = self.level > FLOOR.max(self.noise + ABOVE);
        // The sender's own detector has heard more than ours: where it heard no voice, only what is loud counts.
        let speech = own && told.is_none_or(|told| told.voice || self.level > LOUD);
        self.hangover = if speech { HANGOVER } else { self.hangover.saturating_sub(1) };
        self.hangover > 0
    }

    /// No frame has come.
    pub fn silent(&mut self) {
        self.level = -127.0;
        self.smooth += SHARE * (self.level - self.smooth);
        self.hangover = 0;
    }

    #[must_use]
    pub fn speaks(&self) -> bool {
        self.hangover > 0
    }
}
