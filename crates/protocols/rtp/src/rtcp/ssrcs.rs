//! The SSRCs in a compound, wherever the format has one.

use super::{Item, Kind, walk};
use crate::bytes::{u16_at, u32_at};
use crate::error::{MediaError, What};

/// DLRR block of an XR (RFC 3611 section 4.5).
const DLRR: u8 = 5;

/// The streams that a report or feedback item is about.
#[must_use]
pub fn media_ssrcs(item: &Item) -> Vec<u32> {
    match item.kind {
        Kind::Nack | Kind::Twcc => vec![u32_at(item.content, 8)],
        Kind::Pli | Kind::Fir => item.key_frame_requests().map(|request| request.media_ssrc).collect(),
        Kind::Remb => item.remb().map(|remb| remb.ssrcs().collect()).unwrap_or_default(),
        Kind::Sr | Kind::Rr => item.reports().map(|report| report.ssrc).collect(),
        _ => Vec::new(),
    }
}

/// Replace every SSRC for which `to` has another one: sources, targets, report blocks, REMB lists, FIR entries, BYE and SDES chunks, DLRR
/// blocks of XR. APP and unknown items have only their source replaced.
///
/// # Errors
/// An item is malformed; then nothing is changed.
pub fn rewrite_ssrcs(packet: &mut [u8], to: impl Fn(u32) -> Option<u32>) -> Result<(), MediaError> {
    let mut changes = Vec::new();
    for item in walk(packet) {
        let item = item?;
        for at in places(&item)? {
            if let Some(ssrc) = to(u32_at(item.content, at)) {
                changes.push((item.at + at, ssrc));
            }
        }
    }
    for (at, ssrc) in changes {
        packet[at..at + 4].copy_from_slice(&ssrc.to_be_bytes());
    }
    Ok(())
}

/// Offsets of SSRCs in an item.
fn places(item: &Item) -> Result<Vec<usize>, MediaError> {
    let (data, count) = (item.content, usize::from(item.count));
    let blocks = |first: usize| (first..first + 24 * count).step_by(24);
    let mut places = match item.kind {
        Kind::Sdes => return sdes_chunks(item),
        Kind::Bye => return Ok((4..4 + 4 * count).step_by(4).collect()),
        _ if data.len() >= 8 => vec![4],
        _ => Vec::new(),
    };
    match item.kind {
        Kind::Sr => places.extend(blocks(28)),
        Kind::Rr => places.extend(blocks(8)),
        Kind::Nack | Kind::Twcc | Kind::Pli => places.push(8),
        Kind::Fir => places.extend(std::iter::once(8).chain((12..data.len() - 7).step_by(8))),
        Kind::Remb => places.extend((20..20 + 4 * usize::from(data[16])).step_by(4)),
        Kind::Xr => xr_places(item, &mut places)?,
        _ => {}
    }
    Ok(places)
}

fn sdes_chunks(item: &Item) -> Result<Vec<usize>, MediaError> {
    let data = item.content;
    let wrong = |at| MediaError::new(What::RtcpContent, item.at + at);
    let mut places = Vec::new();
    let mut at = 4;
    for _ in 0..item.count {
        if at + 8 > data.len() {
            return Err(wrong(at));
        }
        places.push(at);
        let mut cursor = at + 4;
        while data.get(cursor).is_some_and(|kind| *kind != 0) {
            let length = data.get(cursor + 1).ok_or(wrong(cursor))?;
            cursor += 2 + usize::from(*length);
            if cursor > data.len() {
                return Err(wrong(cursor));
            }
        }
        at += ((cursor - at) / 4 + 1) * 4;
    }
    Ok(places)
}

fn xr_places(item: &Item, places: &mut Vec<usize>) -> Result<(), MediaError> {
    let data = item.content;
    let mut at = 8;
    while at + 4 <= data.len() {
        let end = at + 4 + 4 * usize::from(u16_at(data, at + 2));
        if end > data.len() {
            return Err(MediaError::new(What::RtcpContent, item.at + at));
        }
        if data[at] == DLRR {
            places.extend((at + 4..end.saturating_sub(11)).step_by(12));
        }
        at = end;
    }
    Ok(())
}
