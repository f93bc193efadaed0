//! Differences of numbers that wrap (RFC 1982).

/// How far a sequence number is after the low 16 bits of an extended one.
pub(crate) fn after(sequence: u16, extended: i64) -> i64 {
    let [.., high, low] = extended.to_be_bytes();
    let step = sequence.wrapping_sub(u16::from_be_bytes([high, low]));
    i64::from(i16::from_be_bytes(step.to_be_bytes()))
}

/// How far a timestamp is after another one.
pub(crate) fn ticks(timestamp: u32, before: u32) -> i64 {
    i64::from(i32::from_be_bytes(timestamp.wrapping_sub(before).to_be_bytes()))
}

/// The low 16 bits.
pub(crate) fn low(extended: i64) -> u16 {
    let [.., high, low] = extended.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// A number that is never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
