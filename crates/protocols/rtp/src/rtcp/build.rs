//! RTCP items of one's own.

use super::{APP, BYE, LEAST_RATE, PSFB, RR, RTPFB, Report, SHUNT};
use crate::error::{MediaError, What};

fn item(count: usize, packet_type: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + body.len());
    // Callers give at most 31 blocks and less than 256 KiB, in whole words.
    #[allow(clippy::cast_possible_truncation)]
    out.extend_from_slice(&[0x80 | (count & 31) as u8, packet_type]);
    #[allow(clippy::cast_possible_truncation)]
    out.extend_from_slice(&((body.len() / 4) as u16).to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn feedback(packet_type: u8, format: usize, sender_ssrc: u32, media_ssrc: u32, body: &[u8]) -> Vec<u8> {
    item(
        format,
        packet_type,
        &[&sender_ssrc.to_be_bytes(), &media_ssrc.to_be_bytes(), body].concat(),
    )
}

/// A picture loss indication.
#[must_use]
pub fn pli(sender_ssrc: u32, media_ssrc: u32) -> Vec<u8> {
    feedback(PSFB, 1, sender_ssrc, media_ssrc, &[])
}

/// A full intra request (RFC 5104 section 4.3.1); its number must change with every new wish.
#[must_use]
pub fn fir(sender_ssrc: u32, media_ssrc: u32, number: u8) -> Vec<u8> {
    feedback(
        PSFB,
        4,
        sender_ssrc,
        0,
        &[&media_ssrc.to_be_bytes()[..], &[number, 0, 0, 0]].concat(),
    )
}

/// A generic NACK, in as few entries as the order of the numbers allows.
///
/// # Errors
/// There are no numbers.
pub fn nack(sender_ssrc: u32, media_ssrc: u32, lost: impl IntoIterator<Item = u16>) -> Result<Vec<u8>, MediaError> {
    let mut entries: Vec<(u16, u16)> = Vec::new();
    for number in lost {
        match entries.last_mut() {
            Some((first, _)) if *first == number => {}
            Some((first, mask)) if number.wrapping_sub(*first) <= 16 => *mask |= 1 << (number.wrapping_sub(*first) - 1),
            _ => entries.push((number, 0)),
        }
    }
    if entries.is_empty() {
        return Err(MediaError::new(What::EmptyNack, 0));
    }
    let body: Vec<u8> = entries
        .iter()
        .flat_map(|(first, mask)| [first.to_be_bytes(), mask.to_be_bytes()].concat())
        .collect();
    Ok(feedback(RTPFB, 1, sender_ssrc, media_ssrc, &body))
}

/// A REMB; the bit rate is rounded down to what 18 bits of mantissa hold.
///
/// # Errors
/// More than 255 streams.
pub fn remb(sender_ssrc: u32, bitrate: u64, ssrcs: &[u32]) -> Result<Vec<u8>, MediaError> {
    let count = u8::try_from(ssrcs.len()).map_err(|_| MediaError::new(What::LongRemb, 0))?;
    let exponent = (u64::BITS - bitrate.leading_zeros()).saturating_sub(18);
    let [.., high, middle, low] = (bitrate >> exponent).to_be_bytes();
    // 64 - 18 = 46 fits six bits.
    #[allow(clippy::cast_possible_truncation)]
    let mut body = [&b"REMB"[..], &[count, (exponent as u8) << 2 | high, middle, low]].concat();
    body.extend(ssrcs.iter().flat_map(|ssrc| ssrc.to_be_bytes()));
    Ok(feedback(PSFB, 15, sender_ssrc, 0, &body))
}

/// The lowest rate at which a stream can be of use to a receiver, bit/s: an APP packet of our own (RFC 3550 section 6.7). What is beyond 32 bits is
/// said as those.
#[must_use]
pub fn least_rate(sender_ssrc: u32, media_ssrc: u32, bitrate: u64) -> Vec<u8> {
    let bitrate = u32::try_from(bitrate).unwrap_or(u32::MAX);
    let body = [
        &sender_ssrc.to_be_bytes()[..],
        SHUNT,
        &media_ssrc.to_be_bytes(),
        &bitrate.to_be_bytes(),
    ]
    .concat();
    item(LEAST_RATE, APP, &body)
}

/// A receiver report; further blocks than 31 are left out.
#[must_use]
pub fn receiver_report(sender_ssrc: u32, reports: &[Report]) -> Vec<u8> {
    let reports = &reports[..reports.len().min(31)];
    let mut body = sender_ssrc.to_be_bytes().to_vec();
    for report in reports {
        body.extend(report.ssrc.to_be_bytes());
        let [_, lost @ ..] = report.cumulative_lost.clamp(-(1 << 23), (1 << 23) - 1).to_be_bytes();
        body.push(report.fraction_lost);
        body.extend(lost);
        for word in [report.highest_sequence, report.jitter, report.lsr, report.dlsr] {
            body.extend(word.to_be_bytes());
        }
    }
    item(reports.len(), RR, &body)
}

/// A BYE; further SSRCs than 31 are left out.
#[must_use]
pub fn bye(ssrcs: &[u32]) -> Vec<u8> {
    let ssrcs = &ssrcs[..ssrcs.len().min(31)];
    let body: Vec<u8> = ssrcs.iter().flat_map(|ssrc| ssrc.to_be_bytes()).collect();
    item(ssrcs.len(), BYE, &body)
}
