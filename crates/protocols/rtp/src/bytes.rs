//! Numbers in network order. Past the end a byte counts as 0; callers check lengths before.

pub(crate) fn u16_at(data: &[u8], at: usize) -> u16 {
    data.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> u32 {
    data.get(at..at + 4)
        .map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from(u32_at(data, at)) << 32 | u64::from(u32_at(data, at + 4))
}

/// Consecutive 32-bit numbers.
pub(crate) fn words(data: &[u8]) -> impl ExactSizeIterator<Item = u32> + Clone + '_ {
    data.chunks_exact(4).map(|word| u32_at(word, 0))
}
