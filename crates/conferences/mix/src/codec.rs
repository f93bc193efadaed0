//! The codecs: what comes becomes 16,000 Hz, one channel; what goes is made of it.

use crate::conceal::Concealer;
use crate::resample::{Down, Up};
use crate::{FRAME, RATE, g711, g722};
use opus::{Application, Bitrate, Channels};
use thiserror::Error;

/// bit/s of an Opus mix: wideband speech.
const OPUS_BITRATE: i32 = 28_000;
/// Of 10: what it costs a processor is to be within what a hundred phones may.
const OPUS_COMPLEXITY: i32 = 5;
/// Octets of the largest Opus packet that is made.
const OPUS_MOST: usize = 400;
/// Samples at 16,000 Hz of the longest packet: 120 ms (RFC 6716 section 2.1.4).
const LONGEST: usize = 6 * FRAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    Pcmu,
    Pcma,
    G722,
    Opus,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum CodecError {
    #[error("Opus: {0}")]
    Opus(&'static str),
    #[error("a packet of {0} octets")]
    Size(usize),
}

impl From<opus::Error> for CodecError {
    fn from(error: opus::Error) -> Self {
        Self::Opus(error.description())
    }
}

impl Codec {
    /// The codec of an rtpmap; `None`: none that is mixed.
    #[must_use]
    pub fn of(encoding: &str, clock_rate: u32) -> Option<Self> {
        let known = [
            ("PCMU", 8000, Self::Pcmu),
            ("PCMA", 8000, Self::Pcma),
            ("G722", 8000, Self::G722),
            ("opus", 48_000, Self::Opus),
        ];
        let same = |(name, rate, _): &&(&str, u32, Self)| name.eq_ignore_ascii_case(encoding) && *rate == clock_rate;
        known.iter().find(same).map(|(.., codec)| *codec)
    }

    /// Hz of RTP timestamps. G.722's is 8,000 (RFC 3551 section 4.5.2).
    #[must_use]
    pub fn clock_rate(self) -> u32 {
        match self {
            Self::Opus => 48_000,
            _ => 8000,
        }
    }
}

enum Inner {
    Alaw(Up),
    Ulaw(Up),
    G722(g722::Decoder),
    Opus(opus::Decoder),
}

/// One sender's packets to samples, and what stands in for those that are lost.
pub struct Decoder {
    codec: Codec,
    inner: Inner,
    concealer: Concealer,
    narrow: Vec<i16>,
    /// Samples of the last packet.
    last: usize,
}

impl Decoder {
    /// # Errors
    /// No memory.
    pub fn new(codec: Codec) -> Result<Self, CodecError> {
        let inner = match codec {
            Codec::Pcma => Inner::Alaw(Up::default()),
            Codec::Pcmu => Inner::Ulaw(Up::default()),
            Codec::G722 => Inner::G722(g722::Decoder::default()),
            Codec::Opus => Inner::Opus(opus::Decoder::new(RATE, Channels::Mono)?),
        };
        Ok(Self {
            codec,
            inner,
            concealer: Concealer::default(),
            narrow: Vec::new(),
            last: FRAME,
        })
    }

    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Samples at 16,000 Hz of a packet; 0: it is none of this codec.
    #[must_use]
    pub fn samples(&self, payload: &[u8]) -> usize {
        let samples = match &self.inner {
            Inner::Opus(decoder) if !payload.is_empty() => decoder.get_nb_samples(payload).unwrap_or(0),
            Inner::Opus(_) => 0,
            _ => 2 * payload.len(),
        };
        if samples <= LONGEST { samples } else { 0 }
    }

    /// Append a packet's samples.
    ///
    /// # Errors
    /// It cannot be decoded; nothing is appended.
    pub fn decode(&mut self, payload: &[u8], out: &mut Vec<i16>) -> Result<(), CodecError> {
        let count = self.samples(payload);
        if count == 0 {
            return Err(CodecError::Size(payload.len()));
        }
        let from = out.len();
        self.narrow.clear();
        match &mut self.inner {
            Inner::Alaw(up) => {
                self.narrow.extend(payload.iter().map(|code| g711::decode_alaw(*code)));
                up.run(&self.narrow, out);
            }
            Inner::Ulaw(up) => {
                self.narrow.extend(payload.iter().map(|code| g711::decode_ulaw(*code)));
                up.run(&self.narrow, out);
            }
            Inner::G722(decoder) => decoder.decode(payload, out),
            Inner::Opus(decoder) => {
                out.resize(from + count, 0);
                match decoder.decode(payload, &mut out[from..], false) {
                    Ok(made) => out.truncate(from + made),
                    Err(error) => {
                        out.truncate(from);
                        return Err(error.into());
                    }
                }
            }
        }
        self.last = count;
        if self.codec != Codec::Opus {
            self.concealer.good(&mut out[from..]);
        }
        Ok(())
    }

    /// Append `count` samples in place of a lost packet. `next`: the packet after it, which may carry this one once more (Opus's in-band FEC).
    pub fn conceal(&mut self, count: usize, next: Option<&[u8]>, out: &mut Vec<i16>) {
        let from = out.len();
        out.resize(from + count, 0);
        let Inner::Opus(decoder) = &mut self.inner else {
            self.concealer.lost(&mut out[from..]);
            return;
        };
        // FEC is of the packet right before.
        let (mut at, fec) = (from, next.filter(|next| !next.is_empty() && count >= self.last));
        let without = if fec.is_some() { from + count - self.last } else { from + count };
        while at < without {
            // Opus conceals multiples of 2.5 ms, up to a packet.
            let most = (without - at).min(LONGEST) / 40 * 40;
            match decoder.decode(&[], &mut out[at..at + most], false) {
                Ok(made) if made > 0 => at += made,
                _ => break,
            }
        }
        if let Some(next) = fec {
            // What is not decoded stays silent.
            let _ = decoder.decode(next, &mut out[without..], true);
        }
    }
}

enum Outer {
    Alaw(Down),
    Ulaw(Down),
    G722(g722::Encoder),
    Opus(opus::Encoder),
}

/// Mixed samples to packets.
pub struct Encoder {
    inner: Outer,
    narrow: Vec<i16>,
}

impl Encoder {
    /// # Errors
    /// No memory.
    pub fn new(codec: Codec) -> Result<Self, CodecError> {
        let inner = match codec {
            Codec::Pcma => Outer::Alaw(Down::default()),
            Codec::Pcmu => Outer::Ulaw(Down::default()),
            Codec::G722 => Outer::G722(g722::Encoder::default()),
            Codec::Opus => {
                let mut encoder = opus::Encoder::new(RATE, Channels::Mono, Application::Voip)?;
                encoder.set_bitrate(Bitrate::Bits(OPUS_BITRATE))?;
                encoder.set_complexity(OPUS_COMPLEXITY)?;
                encoder.set_inband_fec(true)?;
                encoder.set_packet_loss_perc(5)?;
                Outer::Opus(encoder)
            }
        };
        Ok(Self { inner, narrow: Vec::new() })
    }

    /// An encoder that goes on where this one is; `None`: libopus has no copies.
    #[must_use]
    pub fn fork(&self) -> Option<Self> {
        let inner = match &self.inner {
            Outer::Alaw(down) => Outer::Alaw(down.clone()),
            Outer::Ulaw(down) => Outer::Ulaw(down.clone()),
            Outer::G722(encoder) => Outer::G722(encoder.clone()),
            Outer::Opus(_) => return None,
        };
        Some(Self { inner, narrow: Vec::new() })
    }

    /// The payload of one packet.
    ///
    /// # Errors
    /// As libopus says; G.711 and G.722 have none.
    pub fn encode(&mut self, samples: &[i16; FRAME], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        self.narrow.clear();
        match &mut self.inner {
            Outer::Alaw(down) => {
                down.run(samples, &mut self.narrow);
                out.extend(self.narrow.iter().map(|sample| g711::encode_alaw(*sample)));
            }
            Outer::Ulaw(down) => {
                down.run(samples, &mut self.narrow);
                out.extend(self.narrow.iter().map(|sample| g711::encode_ulaw(*sample)));
            }
            Outer::G722(encoder) => encoder.encode(samples, out),
            Outer::Opus(encoder) => {
                out.resize(OPUS_MOST, 0);
                let size = encoder.encode(samples, out)?;
                out.truncate(size);
            }
        }
        Ok(())
    }
}
