//! From a media packet to what suppressing and rewriting need: frame number, first and last packet, layers.
//!
//! Where a stream has no dependency descriptor, frame marking or the VP8 or VP9 payload descriptor tells the temporal layer. They do not count
//! frames as the descriptor does, so the reader counts them: by picture id where there is one, by RTP timestamp where not.

use crate::sequence::Row;
use shunt_rtp::descriptor::{Descriptor, Layer, LayerTable, Mandatory, has_structure};
use shunt_rtp::payload::{FrameMark, Vp8, Vp9};
use shunt_rtp::sequence::distance;
use shunt_rtp::{Header, MediaError};
use std::collections::VecDeque;

const EVERYBODY: u32 = u32::MAX;
/// Timestamps whose frame is remembered for late packets.
const KNOWN: usize = 64;
/// Frames put between two packets when what lies between cannot be counted: more than rewriting asks about.
const UNCERTAIN: u16 = 32;

/// Where a stream's layers are told; with the id of the header extension where it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    DependencyDescriptor(u8),
    FrameMarking(u8),
    Vp8,
    Vp9,
}

impl Told {
    /// What `replicate` calls it (docs/replication.md, `descriptor`).
    #[must_use]
    pub fn descriptor(self) -> u8 {
        match self {
            Self::DependencyDescriptor(_) => 1,
            Self::FrameMarking(_) => 2,
            Self::Vp8 => 3,
            Self::Vp9 => 4,
        }
    }

    /// The id of the header extension; 0 for none.
    #[must_use]
    pub fn extension(self) -> u8 {
        match self {
            Self::DependencyDescriptor(id) | Self::FrameMarking(id) => id,
            Self::Vp8 | Self::Vp9 => 0,
        }
    }
}

/// One packet as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaPacket {
    pub sequence: u16,
    pub frame: u16,
    pub start: bool,
    pub end: bool,
    /// Bit n: decode target n (temporal layer n where no descriptor says more) needs it.
    pub needed_by: u32,
    /// Bit n: whoever can decode this frame can decode all of target n from here on.
    pub switches: u32,
    /// Bit n: whoever gets target n can decode it.
    pub decodable: u32,
    /// It carries a template structure.
    pub structure: bool,
}

impl MediaPacket {
    /// Whether a receiver may change its decode target with this packet: down with any frame, up where the stream allows it.
    #[must_use]
    pub fn changes(&self, old: usize, new: usize) -> bool {
        self.start && (new < old || self.switches >> new & self.decodable >> old & 1 != 0)
    }

    /// What rewriting asks, for receivers with this decode target.
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

/// What a packet says of its frame.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    start: bool,
    end: bool,
    picture: Option<u16>,
    /// `None`: of no frame.
    temporal: Option<u8>,
    /// It depends on the base layer only.
    sync: bool,
    /// It depends on nothing.
    key: bool,
    /// What is above depends on nothing above it from before.
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

/// Reads the packets of one stream, in the order in which they arrive.
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
    /// The packet is malformed; the reader goes on with the next one.
    pub fn read(&mut self, packet: &[u8]) -> Result<MediaPacket, MediaError> {
        let header = Header::parse(packet)?;
        let element = |id: u8| header.extension.map_or(Ok(None), |extension| extension.find(id));
        let found = match self.told {
            Told::DependencyDescriptor(id) => match element(id)? {
                Some(element) => return self.described(&header, element),
                // Everybody gets it, and a gap beside it is not taken for a suppressed one.
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

    /// The number of the packet's frame.
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
            // 7 and 15 bits: half of the smaller range is far more than any reordering.
            let step = (picture.wrapping_sub(last).wrapping_add(64) & 127).wrapping_sub(64);
            return if ahead > 0 || step > i16::MAX as u16 {
                self.frame.wrapping_add(step)
            } else {
                before
            };
        }
        if ahead <= 0 {
            // A frame of which nothing else came: before the highest, whichever it is.
            return before;
        }
        let gap = ahead - 1;
        // Each edge that is missing lost something.
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
    // Layers in space are frames of their own there, of one picture: only the picture counts here.
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

/// A packet where layers are nested.
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
