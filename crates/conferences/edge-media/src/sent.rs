//! Packets recently sent to the data plane, for retransmission.

/// Kept packets of one stream; a power of two.
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

    /// Returns a cleared buffer for a packet with this number.
    pub fn slot(&mut self, sequence: u16) -> &mut Vec<u8> {
        let (number, packet) = self.slots[usize::from(sequence) % KEPT].get_or_insert_with(Default::default);
        *number = sequence;
        packet.clear();
        packet
    }

    /// Returns the packet with a number, if it is kept.
    #[must_use]
    pub fn packet(&self, sequence: u16) -> Option<&[u8]> {
        let (number, packet) = self.slots[usize::from(sequence) % KEPT].as_ref()?;
        (*number == sequence && !packet.is_empty()).then_some(packet)
    }
}
