//! Chunks: vendor (16 bits), type (16 bits), length with these six bytes (16 bits), and the content. All numbers are in network order.

use crate::error::HepError;

pub(crate) const HEADER: usize = 6;

/// Chunk types of vendor 0.
pub(crate) mod kind {
    pub(crate) const FAMILY: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const SOURCE_4: u16 = 3;
    pub(crate) const DESTINATION_4: u16 = 4;
    pub(crate) const SOURCE_6: u16 = 5;
    pub(crate) const DESTINATION_6: u16 = 6;
    pub(crate) const SOURCE_PORT: u16 = 7;
    pub(crate) const DESTINATION_PORT: u16 = 8;
    pub(crate) const SECONDS: u16 = 9;
    pub(crate) const MICROSECONDS: u16 = 10;
    pub(crate) const PAYLOAD_KIND: u16 = 11;
    pub(crate) const CAPTURE_ID: u16 = 12;
    pub(crate) const KEEP_ALIVE: u16 = 13;
    pub(crate) const PAYLOAD: u16 = 15;
    pub(crate) const COMPRESSED: u16 = 16;
    pub(crate) const CORRELATION: u16 = 17;
    /// The largest of them.
    pub(crate) const LAST: u16 = 17;
}

/// Length of a type's content; `None` for any length.
fn size_of(chunk: u16) -> Option<usize> {
    match chunk {
        kind::FAMILY | kind::PROTOCOL | kind::PAYLOAD_KIND => Some(1),
        kind::SOURCE_PORT | kind::DESTINATION_PORT | kind::KEEP_ALIVE => Some(2),
        kind::SOURCE_4 | kind::DESTINATION_4 | kind::SECONDS | kind::MICROSECONDS | kind::CAPTURE_ID => Some(4),
        kind::SOURCE_6 | kind::DESTINATION_6 => Some(16),
        _ => None,
    }
}

/// The content of each known chunk type. The last of several chunks of one type counts.
pub(crate) struct Chunks<'a> {
    contents: [Option<&'a [u8]>; kind::LAST as usize + 1],
}

impl<'a> Chunks<'a> {
    /// `data` is a packet up to its announced end. Unknown chunks and those of other vendors are ignored.
    pub(crate) fn read(data: &'a [u8]) -> Result<Self, HepError> {
        let mut contents = [None; kind::LAST as usize + 1];
        let mut at = HEADER;
        while at < data.len() {
            let left = data.len() - at;
            let Some(header) = data.get(at..at + HEADER) else {
                return Err(HepError::ChunkHeader { at, left });
            };
            let number = |from: usize| u16::from_be_bytes([header[from], header[from + 1]]);
            let (vendor, chunk, announced) = (number(0), number(2), usize::from(number(4)));
            if announced < HEADER || announced > left {
                return Err(HepError::ChunkLength {
                    kind: chunk,
                    at,
                    announced,
                    left,
                });
            }
            let content = &data[at + HEADER..at + announced];
            if let Some(place) = contents.get_mut(usize::from(chunk)).filter(|_| vendor == 0) {
                if let Some(wanted) = size_of(chunk).filter(|wanted| *wanted != content.len()) {
                    return Err(HepError::ChunkSize {
                        kind: chunk,
                        at,
                        held: content.len(),
                        wanted,
                    });
                }
                *place = Some(content);
            }
            at += announced;
        }
        Ok(Self { contents })
    }

    pub(crate) fn get(&self, chunk: u16) -> Option<&'a [u8]> {
        self.contents.get(usize::from(chunk)).copied().flatten()
    }

    /// A number of up to four bytes; 0 without the chunk.
    pub(crate) fn number(&self, chunk: u16) -> u32 {
        self.get(chunk)
            .unwrap_or_default()
            .iter()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
    }
}

/// Appends a chunk of vendor 0. The caller ensures that its length fits 16 bits.
pub(crate) fn put(out: &mut Vec<u8>, chunk: u16, content: &[u8]) {
    let length = u16::try_from(HEADER + content.len()).unwrap_or(u16::MAX);
    for number in [0, chunk, length] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(content);
}
