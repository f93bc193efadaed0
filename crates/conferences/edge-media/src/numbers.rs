//! Differences of numbers that wrap (RFC 1982), and restarts of a sender's sequence numbers (RFC 3550 appendix A.1).

/// A larger step is a restart of the sender (`MAX_DROPOUT` of RFC 3550).
const JUMP: i64 = 3000;
/// A packet further back is not reordered (`MAX_MISORDER` of RFC 3550).
const REORDERED: i64 = 100;
/// After a false restart, the next packet is at most this far after the highest one before it.
const NEAR: i16 = 8;

/// Returns how far a sequence number is after the low 16 bits of an extended one.
pub(crate) fn after(sequence: u16, extended: i64) -> i64 {
    let [.., high, low] = extended.to_be_bytes();
    let step = sequence.wrapping_sub(u16::from_be_bytes([high, low]));
    i64::from(i16::from_be_bytes(step.to_be_bytes()))
}

/// Returns how far a timestamp is after another one.
pub(crate) fn ticks(timestamp: u32, before: u32) -> i64 {
    i64::from(i32::from_be_bytes(timestamp.wrapping_sub(before).to_be_bytes()))
}

/// Returns the low 16 bits.
pub(crate) fn low(extended: i64) -> u16 {
    let [.., high, low] = extended.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Converts a number that is never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Distinguishes a sender that restarted its sequence numbers from late packets and duplicates (RFC 3550 appendix A.1).
///
/// A step of `JUMP` is a restart. So is a run of consecutive packets from behind, without a packet ahead of the highest between them: two
/// packets from beyond `REORDERED`, as in RFC 3550; three whose timestamps are ahead, at any distance; or 16 whose numbers never came,
/// which may be repairs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restarts {
    /// The number that continues the run from behind, and the run's length.
    run: Option<(u16, u32)>,
    /// The latest timestamp.
    timestamp: Option<u32>,
    /// The number that would have continued the numbering before the last restart.
    left: Option<u16>,
}

impl Restarts {
    /// Processes a packet and returns whether the sender restarted with it.
    ///
    /// `delta`: how far it is after the highest number of its source; `known`: its number came before or is too old to decide.
    pub(crate) fn packet(&mut self, sequence: u16, timestamp: u32, delta: i64, known: bool) -> bool {
        let ahead = self.timestamp.is_some_and(|before| ticks(timestamp, before) > 0);
        let restarted = if delta.abs() >= JUMP {
            true
        } else if delta > 0 {
            self.run = None;
            // A run of duplicates looked like a restart: the sender continues its numbering.
            let returned = self.left.is_some_and(|left| (0..NEAR).contains(&distance(sequence, left)));
            if returned {
                self.left = None;
            }
            returned && delta > i64::from(NEAR)
        } else {
            let length = self.run.filter(|(next, _)| *next == sequence).map_or(1, |(_, length)| length + 1);
            self.run = Some((sequence.wrapping_add(1), length));
            match (known, -delta > REORDERED) {
                (true, true) => length >= 2,
                _ if ahead => length >= 3,
                (false, true) => length >= 16,
                _ => false,
            }
        };
        if restarted {
            self.run = None;
            self.left = (delta <= 0).then(|| sequence.wrapping_sub(low(delta)).wrapping_add(1));
        }
        if restarted || (delta > 0 && (ahead || self.timestamp.is_none())) {
            self.timestamp = Some(timestamp);
        }
        restarted
    }
}

/// Returns how far a sequence number is after another one.
fn distance(sequence: u16, before: u16) -> i16 {
    i16::from_be_bytes(sequence.wrapping_sub(before).to_be_bytes())
}
