//! Retransmission of a DTLS client's flights (RFC 6347 section 4.2.4), for a library that sends each only once.

use std::time::Duration;

/// The first wait, and the longest. A peer that is late, not lost, gets few copies; it ignores them.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(4);
/// Packets of one flight: certificates of RSA keys fit.
const PACKETS: usize = 16;

/// The flight that was sent last, until the next one or the end of the handshake. A packet of the peer does not end it: the packet may be the peer's
/// own retransmission, because this flight was lost.
#[derive(Debug, Default)]
pub struct Flight {
    packets: Vec<Vec<u8>>,
    answered: bool,
    wait: Duration,
    due: Option<Duration>,
}

impl Flight {
    /// Takes a packet that was sent. The first one after an answer begins the next flight.
    pub fn sent(&mut self, now: Duration, packet: &[u8]) {
        if self.answered {
            self.packets.clear();
            self.answered = false;
        }
        if self.packets.len() < PACKETS {
            self.packets.push(packet.to_vec());
        }
        self.wait = FIRST;
        self.due = Some(now + self.wait);
    }

    /// The peer has sent something: what is sent next begins another flight.
    pub fn answer(&mut self) {
        self.answered = true;
    }

    /// The handshake is complete.
    pub fn finish(&mut self) {
        self.packets.clear();
        self.due = None;
    }

    /// Returns when the flight is sent again.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the packets to send again now.
    pub fn again(&mut self, now: Duration) -> &[Vec<u8>] {
        if self.due.is_none_or(|due| now < due) {
            return &[];
        }
        self.wait = (self.wait * 2).min(LONGEST);
        self.due = Some(now + self.wait);
        &self.packets
    }
}
