//! Reads from a media packet what dropping layers and rewriting need: frame number, first and last packet, and layers.
//!
//! Without a dependency descriptor, the temporal layer comes from frame marking or from the VP8 or VP9 payload descriptor. These do not
//! number frames as the descriptor does, so the reader counts frames: by picture ID if there is one, otherwise by RTP timestamp.

use crate::sequence::Row;
use shunt_rtp::descriptor::{Descriptor, Layer, LayerTable, Mandatory, has_structure};
use shunt_rtp::payload::{FrameMark, Vp8, Vp9};
use shunt_rtp::sequence::distance;
use shunt_rtp::{Header, MediaError};
use std::collections::VecDeque;

const EVERYBODY: u32 = u32::MAX;
/// Number of timestamps whose frame is remembered for late packets.
const KNOWN: usize = 64;
/// Frames assumed between two packets if the number is unknown: more than rewriting considers.
const UNCERTAIN: u16 = 32;

/// Source of a stream's layers, with the ID of the header extension if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    DependencyDescriptor(u8),
    FrameMarking(u8),
    Vp8,
    Vp9,
}

impl Told {
    /// Returns the name in `replicate` (docs/replication.md, `descriptor`).
    #[must_use]
    pub fn descriptor(self) -> u8 {
        match self {
            Self::DependencyDescriptor(_) => 1,
            Self::FrameMarking(_) => 2,
            Self::Vp8 => 3,
            Self::Vp9 => 4,
        }
    }

    /// Returns the ID of the header extension; 0 if none.
    #[must_use]
    pub fn extension(self) -> u8 {
        match self {
            Self::DependencyDescriptor(id) | Self::FrameMarking(id) => id,
            Self::Vp8 | Self::Vp9 => 0,
        }
    }
}

/// One parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaPacket {
    pub sequence: u16,
    pub frame: u16,
    pub start: bool,
    pub end: bool,
    /// Bit n: decode target n needs the packet (temporal layer n if there is no descriptor).
    pub needed_by: u32,
    /// Bit n: a receiver that can decode this frame can decode all of target n from here on.
    pub switches: u32,
    /// Bit n: receivers of target n can decode the packet.
    pub decodable: u32,
    /// The packet carries a template structure.
    pub structure: bool,
}

impl MediaPacket {
    /// Returns whether a receiver may change its decode target with this packet: to a lower one with any frame, to a higher one if the
    /// stream allows it.
    #[must_use]
    pub fn changes(&self, old: usize, new: usize) -> bool {
        self.start && (new < old || self.switches >> new & self.decodable >> old & 1 != 0)
    }

    /// Returns the input of rewriting, for receivers with this decode target.
    #[must_use]
    pub fn row(&self, target: usize) -> Row {
        Row {
            sequence: self.sequence,
            frame: self.frame,
            start: self.start,
            end: self.end,
            keep: self.needed_by >> target & 1 != 0,
            key: self.structure,
        }
    }
}

/// A packet's information on its frame.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    start: bool,
    end: bool,
    picture: Option<u16>,
    /// `None`: the packet belongs to no frame.
    temporal: Option<u8>,
    /// The frame depends only on the base layer.
    sync: bool,
    /// The frame depends on no other frame.
    key: bool,
    /// Later frames of higher layers depend on no earlier frame of a higher layer.
    up: bool,
}

const OF_NO_FRAME: Frame = Frame {
    start: true,
    end: true,
    picture: None,
    temporal: None,
    sync: false,
    key: false,
    up: false,
};

/// Parses the packets of one stream, in order of arrival.
#[derive(Clone, Debug)]
pub struct Reader {
    told: Told,
    table: LayerTable,
    /// Timestamp and frame number.
    frames: VecDeque<(u32, u16)>,
    sequence: Option<u16>,
    frame: u16,
    ended: bool,
    picture: Option<u16>,
}

impl Reader {
    #[must_use]
    pub fn new(told: Told) -> Self {
        Self {
            told,
            table: LayerTable::default(),
            frames: VecDeque::with_capacity(KNOWN + 1),
            sequence: None,
            frame: 0,
            ended: false,
            picture: None,
        }
    }

    /// # Errors
    /// The packet is malformed; the reader continues with the next one.
    pub fn read(&mut self, packet: &[u8]) -> Result<MediaPacket, MediaError> {
        let header = Header::parse(packet)?;
        let element = |id: u8| header.extension.map_or(Ok(None), |extension| extension.find(id));
        let found = match self.told {
            Told::DependencyDescriptor(id) => match element(id)? {
                Some(element) => return self.described(&header, element),
                // All receivers get this packet, and a gap next to it does not count as suppressed.
                None => return Ok(whole(header.sequence, self.frame, OF_NO_FRAME)),
            },
            Told::FrameMarking(id) => match element(id)? {
                Some(element) => marked(FrameMark::parse(element)?),
                None => OF_NO_FRAME,
            },
            _ if header.payload.is_empty() => OF_NO_FRAME,
            Told::Vp8 => vp8(Vp8::parse(header.payload)?, header.marker),
            Told::Vp9 => vp9(Vp9::parse(header.payload)?, header.marker),
        };
        let frame = self.count(&header, found);
        Ok(whole(header.sequence, frame, found))
    }

    fn described(&mut self, header: &Header, element: &[u8]) -> Result<MediaPacket, MediaError> {
        let mandatory = Mandatory::parse(element)?;
        let structure = has_structure(element);
        if structure && let Some(found) = Descriptor::parse(element, None)?.structure {
            self.table.see(found);
        }
        if self.sequence.is_none_or(|last| distance(header.sequence, last) > 0) {
            (self.sequence, self.frame) = (Some(header.sequence), mandatory.frame_number);
        }
        let Layer { needed_by, switches } = self.table.layer(mandatory.template_id);
        Ok(MediaPacket {
            sequence: header.sequence,
            frame: mandatory.frame_number,
            start: mandatory.start,
            end: mandatory.end,
            needed_by,
            switches,
            decodable: needed_by,
            structure,
        })
    }

    /// Returns the frame number of a packet.
    fn count(&mut self, header: &Header, found: Frame) -> u16 {
        let ahead = self.sequence.map_or(1, |last| distance(header.sequence, last));
        let known = self.frames.iter().rev().find(|(timestamp, _)| *timestamp == header.timestamp);
        let frame = match known {
            Some((_, frame)) => *frame,
            None => {
                let frame = self.new_frame(ahead, found);
                self.frames.push_back((header.timestamp, frame));
                if self.frames.len() > KNOWN {
                    self.frames.pop_front();
                }
                frame
            }
        };
        if ahead > 0 {
            (self.sequence, self.frame, self.ended) = (Some(header.sequence), frame, found.end);
            self.picture = found.picture.or(self.picture);
        }
        frame
    }

    fn new_frame(&self, ahead: i32, found: Frame) -> u16 {
        if self.sequence.is_none() {
            return 0;
        }
        let before = self.frame.wrapping_sub(1);
        if let (Some(picture), Some(last)) = (found.picture, self.picture) {
            // The number has 7 or 15 bits. Half of the smaller range exceeds any reordering.
            let step = (picture.wrapping_sub(last).wrapping_add(64) & 127).wrapping_sub(64);
            return if ahead > 0 || step > i16::MAX as u16 {
                self.frame.wrapping_add(step)
            } else {
                before
            };
        }
        if ahead <= 0 {
            // No other packet of this frame has arrived: it precedes the highest frame.
            return before;
        }
        let gap = ahead - 1;
        // Each missing edge means a loss.
        let edges = i32::from(!self.ended) + i32::from(!found.start);
        let on = match (gap, edges) {
            (0, _) => 1,
            (1, 0) => 2,
            _ if gap == edges => 1,
            _ => UNCERTAIN,
        };
        self.frame.wrapping_add(on)
    }
}

fn marked(mark: FrameMark) -> Frame {
    Frame {
        start: mark.start,
        end: mark.end,
        temporal: Some(mark.temporal),
        sync: mark.base_sync,
        key: mark.independent,
        ..Frame::default()
    }
}

fn vp8(found: Vp8, marker: bool) -> Frame {
    Frame {
        start: found.start,
        end: marker,
        picture: found.picture_id,
        temporal: Some(found.temporal.unwrap_or(0)),
        sync: found.sync,
        key: found.key,
        up: false,
    }
}

fn vp9(found: Vp9, marker: bool) -> Frame {
    // There, spatial layers of one picture are separate frames; only the picture counts here.
    let base = found.spatial.unwrap_or(0) == 0;
    Frame {
        start: found.start && base,
        end: marker,
        picture: found.picture_id,
        temporal: Some(found.temporal.unwrap_or(0)),
        sync: false,
        key: !found.predicted && base,
        up: found.switching,
    }
}

/// Returns a packet's layers for nested layers.
fn whole(sequence: u16, frame: u16, found: Frame) -> MediaPacket {
    let (needed_by, switches, decodable) = match found.temporal {
        None => (EVERYBODY, 0, 0),
        Some(temporal) => {
            let needed_by = EVERYBODY << (temporal & 31);
            let own = 1 << (temporal & 31);
            let above = if found.up { needed_by & !own } else { 0 };
            if found.key {
                (needed_by, EVERYBODY, EVERYBODY)
            } else if found.sync && temporal > 0 {
                (needed_by, own | above, EVERYBODY)
            } else {
                (needed_by, above, needed_by)
            }
        }
    };
    MediaPacket {
        sequence,
        frame,
        start: found.start,
        end: found.end,
        needed_by,
        switches,
        decodable,
        structure: false,
    }
}
