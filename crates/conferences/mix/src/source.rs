//! One participant's audio as it comes: its streams, its jitter buffer, whether it speaks, and which keys it has pressed.

use crate::FRAME;
use crate::codec::Codec;
use crate::jitter::{Buffer, Counts};
use crate::keys::{Command, Keys};
use crate::level::{Activity, Told};
use shunt_rtp::Header;

/// What a payload type of a sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Audio(Codec),
    /// Telephone events (RFC 4733).
    Keys,
    /// Comfort noise (RFC 3389).
    Silence,
}

impl Format {
    /// The format of an rtpmap.
    #[must_use]
    pub fn of(encoding: &str, clock_rate: u32) -> Option<Self> {
        match encoding.to_ascii_lowercase().as_str() {
            "telephone-event" => Some(Self::Keys),
            "cn" => Some(Self::Silence),
            _ => Codec::of(encoding, clock_rate).map(Self::Audio),
        }
    }
}

pub struct Source {
    /// By payload type.
    pub formats: Vec<(u8, Format)>,
    /// The id of the client-to-mixer level extension.
    pub level_extension: Option<u8>,
    pub muted: bool,
    /// The stream that is heard: of several the one that came last to begin.
    ssrc: Option<u32>,
    buffer: Buffer,
    keys: Keys,
    told: Option<Told>,
    pub activity: Activity,
    pub frame: [i16; FRAME],
    /// Packets of payload types that nobody has named.
    pub unknown: u64,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            formats: Vec::new(),
            level_extension: None,
            muted: false,
            ssrc: None,
            buffer: Buffer::default(),
            keys: Keys::default(),
            told: None,
            activity: Activity::default(),
            frame: [0; FRAME],
            unknown: 0,
        }
    }
}

impl Source {
    #[must_use]
    pub fn ssrc(&self) -> Option<u32> {
        self.ssrc
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.buffer.counts
    }

    /// What the jitter buffer adds, µs.
    #[must_use]
    pub fn added(&self) -> i64 {
        self.buffer.added()
    }

    /// The RTP timestamp of what goes out next, and its clock rate; `None` while it is silent.
    #[must_use]
    pub fn playing(&self) -> Option<(u32, u32)> {
        self.buffer.playing()
    }

    pub fn packet(&mut self, now: u64, header: &Header<'_>) -> Option<Command> {
        let format = self
            .formats
            .iter()
            .find(|(number, _)| *number == header.payload_type)
            .map(|(_, format)| *format);
        if self.ssrc != Some(header.ssrc) {
            // A sender that begins anew.
            self.buffer.renew();
            self.ssrc = Some(header.ssrc);
        }
        let codec = match format {
            Some(Format::Audio(codec)) => Some(codec),
            Some(Format::Silence) => None,
            Some(Format::Keys) => return self.keys.event(now, header.timestamp, header.payload),
            None => {
                self.unknown += 1;
                return None;
            }
        };
        let extension = header.extension.zip(self.level_extension);
        self.told = extension.and_then(|(extension, id)| Told::read(extension.find(id).ok()??));
        self.buffer.arrived(now, header.sequence, header.timestamp, codec, header.payload);
        None
    }

    /// The next frame; whether it is to be heard.
    pub fn pull(&mut self, now: u64) -> bool {
        if self.buffer.pull(now, &mut self.frame) {
            self.activity.frame(&self.frame, self.told) && !self.muted
        } else {
            self.activity.silent();
            false
        }
    }
}
