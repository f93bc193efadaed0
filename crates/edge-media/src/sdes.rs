//! Source descriptions (RFC 3550 section 6.5) and sender reports (section 6.4.1).

use shunt_rtp::rtcp::{Item, Kind, SenderInfo};

const CNAME: u8 = 1;

/// The canonical name in the first chunk of a source description, with its SSRC.
#[must_use]
pub fn cname<'a>(item: &Item<'a>) -> Option<(u32, &'a str)> {
    if item.kind != Kind::Sdes || item.count == 0 {
        return None;
    }
    let (ssrc, mut rest) = item.bytes.get(4..)?.split_first_chunk::<4>()?;
    while let [kind, length, tail @ ..] = rest {
        if *kind == 0 {
            return None;
        }
        let text = tail.get(..usize::from(*length))?;
        if *kind == CNAME {
            return Some((u32::from_be_bytes(*ssrc), std::str::from_utf8(text).ok()?));
        }
        rest = &tail[text.len()..];
    }
    None
}

/// A source description of one name; what is longer than 255 octets is cut.
#[must_use]
pub fn cname_item(ssrc: u32, cname: &str) -> Vec<u8> {
    let text = &cname.as_bytes()[..cname.len().min(255)];
    // At most 255.
    #[allow(clippy::cast_possible_truncation)]
    let mut out = vec![0x81, 202, 0, 0];
    out.extend_from_slice(&ssrc.to_be_bytes());
    #[allow(clippy::cast_possible_truncation)]
    out.extend_from_slice(&[CNAME, text.len() as u8]);
    out.extend_from_slice(text);
    // The list ends with a zero, and the chunk at a word.
    out.push(0);
    while out.len() % 4 != 0 {
        out.push(0);
    }
    #[allow(clippy::cast_possible_truncation)]
    let words = (out.len() / 4 - 1) as u16;
    out[2..4].copy_from_slice(&words.to_be_bytes());
    out
}

/// A sender report without report blocks.
#[must_use]
pub fn sender_report(info: &SenderInfo) -> Vec<u8> {
    let mut out = vec![0x80, 200, 0, 6];
    out.extend_from_slice(&info.ssrc.to_be_bytes());
    out.extend_from_slice(&info.ntp.to_be_bytes());
    for word in [info.rtp, info.packets, info.octets] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out
}
