//! A mosaic's bits in as few packets as they fit (RFC 4587): cut before macroblocks, with only those contributors that a packet has bits of.

use super::mosaic::{Composed, Cut};
use super::payload::Header;
use crate::stream::{Payload, header_size};

/// Payloads for packets of at most `size` octets.
#[must_use]
pub fn payloads(picture: &Composed, size: usize) -> Vec<Payload> {
    let mut payloads = Vec::new();
    let mut contributors: Vec<u32> = Vec::new();
    let mut first: Option<&Cut> = None;
    let ends = picture.cuts.iter().skip(1).map(|cut| cut.at).chain([picture.end]);
    for (cut, end) in picture.cuts.iter().zip(ends) {
        let new = cut.contributor.filter(|contributor| !contributors.contains(contributor));
        let from = *first.get_or_insert(cut);
        let count = contributors.len() + usize::from(new.is_some());
        let octets = end.div_ceil(8) - from.at / 8;
        if from.at < cut.at && header_size(count) + Header::SIZE + octets > size {
            payloads.push(payload(picture, from, cut.at, std::mem::take(&mut contributors)));
            first = Some(cut);
            contributors.extend(cut.contributor);
        } else {
            contributors.extend(new);
        }
    }
    payloads.extend(first.map(|from| payload(picture, from, picture.end, contributors)));
    payloads
}

fn payload(picture: &Composed, first: &Cut, end: usize, contributors: Vec<u32>) -> Payload {
    // Both are less than 8.
    #[allow(clippy::cast_possible_truncation)]
    let header = Header {
        start: (first.at % 8) as u8,
        end: (end.wrapping_neg() % 8) as u8,
        vectors: true,
        ..first.header
    };
    let octets = &picture.bits[first.at / 8..end.div_ceil(8)];
    Payload {
        octets: [&header.bytes()[..], octets].concat(),
        contributors,
    }
}
