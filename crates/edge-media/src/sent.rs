//! Packets that were sent to the data plane lately, for those who ask for them again.

/// Packets that are kept of one stream; a power of two.
const KEPT: usize = 512;

/// The packets of one stream.
#[derive(Debug)]
pub struct Sent {
    pub ssrc: u32,
    slots: Vec<Option<(u16, Vec<u8>)>>,
}

impl Sent {
    #[must_use]
    pub fn new(ssrc: u32) -> Self {
        Self {
            ssrc,
            slots: vec![None; KEPT],
        }
    }

    /// A buffer for a packet with this number, empty; what it held is forgotten.
    pub fn slot(&mut self, sequence: u16) -> &mut Vec<u8> {
        let (number, packet) = self.slots[usize::from(sequence) % KEPT].get_or_insert_with(Default::default);
        *number = sequence;
        packet.clear();
        packet
    }

    /// The packet with a number, if it is kept.
    #[must_use]
    pub fn packet(&self, sequence: u16) -> Option<&[u8]> {
        let (number, packet) = self.slots[usize::from(sequence) % KEPT].as_ref()?;
        (*number == sequence && !packet.is_empty()).then_some(packet)
    }
}
