//! Keys of phones: telephone events (RFC 4733), and what two of them mean.

/// Two keys belong together within this, µs.
const TOGETHER: u64 = 3_000_000;
/// Events 0 to 15 are keys.
const KEYS: &[u8; 16] = b"0123456789*#ABCD";

/// What a participant asks for by keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `*6`: mute, or no longer.
    Mute,
    /// `*9`: leave.
    Leave,
}

#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// The timestamp of the last event: its packets have it in common.
    event: Option<u32>,
    last: Option<(u8, u64)>,
}

impl Keys {
    /// The payload of a telephone event; what it completes.
    pub fn event(&mut self, now: u64, timestamp: u32, payload: &[u8]) -> Option<Command> {
        let key = *KEYS.get(usize::from(*payload.first()?))?;
        // Event, volume, and two octets of duration.
        if payload.len() < 4 || self.event == Some(timestamp) {
            return None;
        }
        self.event = Some(timestamp);
        let before = self.last.replace((key, now)).filter(|(_, at)| now.saturating_sub(*at) <= TOGETHER);
        let command = match (before.map(|(key, _)| key), key) {
            (Some(b'*'), b'6') => Command::Mute,
            (Some(b'*'), b'9') => Command::Leave,
            _ => return None,
        };
        self.last = None;
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_six_mutes_once_however_often_its_packets_come() {
        let mut keys = Keys::default();
        let star = [10, 10, 0, 160];
        let six = [6, 0x8A, 3, 32];
        for _ in 0..3 {
            assert_eq!(keys.event(0, 1000, &star), None);
        }
        assert_eq!(keys.event(400_000, 4000, &six), Some(Command::Mute));
        assert_eq!(keys.event(420_000, 4000, &six), None);
        // A six alone, and one long after the star.
        assert_eq!(keys.event(500_000, 8000, &six), None);
        assert_eq!(keys.event(600_000, 9000, &star), None);
        assert_eq!(keys.event(9_000_000, 80_000, &six), None);
    }

    #[test]
    fn what_is_no_key_is_nothing() {
        let mut keys = Keys::default();
        assert_eq!(keys.event(0, 1, &[]), None);
        assert_eq!(keys.event(0, 1, &[200, 0, 0, 0]), None);
        assert_eq!(keys.event(0, 1, &[10]), None);
    }
}
