//! Writes plain RTP (RFC 3550 section 5.1, RFC 8285).

/// A packet to write.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a> {
    pub marker: bool,
    /// 7 bits.
    pub payload_type: u8,
    pub sequence: u16,
    pub timestamp: u32,
    pub ssrc: u32,
    /// Header extensions by their local ids (1 to 255), at most 255 octets each; others are omitted.
    pub elements: &'a [(u8, &'a [u8])],
    pub payload: &'a [u8],
}

impl Plain<'_> {
    /// Appends the packet.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_header(out);
        out.extend_from_slice(self.payload);
    }

    /// Appends its header. The one-byte form of header extensions is used if all of them fit.
    pub fn write_header(&self, out: &mut Vec<u8>) {
        let elements = || {
            self.elements
                .iter()
                .filter_map(|(id, data)| Some((*id, u8::try_from(data.len()).ok()?, *data)))
                .filter(|(id, ..)| *id > 0)
        };
        let extended = elements().next().is_some();
        out.push(if extended { 0x90 } else { 0x80 });
        out.push(u8::from(self.marker) << 7 | self.payload_type & 0x7F);
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        out.extend_from_slice(&self.ssrc.to_be_bytes());
        if extended {
            let short = elements().all(|(id, length, _)| id < 15 && (1..=16).contains(&length));
            out.extend_from_slice(if short { &[0xBE, 0xDE, 0, 0] } else { &[0x10, 0, 0, 0] });
            let start = out.len();
            for (id, length, data) in elements() {
                if short {
                    out.push(id << 4 | (length - 1));
                } else {
                    out.extend_from_slice(&[id, length]);
                }
                out.extend_from_slice(data);
            }
            while !(out.len() - start).is_multiple_of(4) {
                out.push(0);
            }
            // Ids are distinct and have at most 257 octets each: less than 65,536 octets in total.
            #[allow(clippy::cast_possible_truncation)]
            let words = ((out.len() - start) / 4) as u16;
            out[start - 2..start].copy_from_slice(&words.to_be_bytes());
        }
    }
}
