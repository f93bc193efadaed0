//! Source descriptions (RFC 3550 section 6.5) and sender reports (section 6.4.1).

use shunt_rtp::rtcp::{Item, Kind, SenderInfo};

const CNAME: u8 = 1;

/// An SSRC and its canonical name.
type Named<'a> = (u32, &'a str);

/// Reads the canonical names in a source description, with their SSRCs, up to the first unreadable part.
pub fn read_cnames<'a>(item: &Item<'a>) -> impl Iterator<Item = Named<'a>> + use<'a> {
    let chunks = if item.kind == Kind::Sdes { item.count } else { 0 };
    let mut rest = item.bytes.get(4..).unwrap_or_default();
    let chunks = (0..chunks).map_while(move |_| {
        let (name, after) = chunk(rest)?;
        rest = after;
        Some(name)
    });
    chunks.flatten()
}

/// Returns the name of a chunk, if it has one, and the bytes after the chunk.
fn chunk(bytes: &[u8]) -> Option<(Option<Named<'_>>, &[u8])> {
    let (ssrc, mut rest) = bytes.split_first_chunk::<4>()?;
    let mut name = None;
    while let [kind, tail @ ..] = rest
        && *kind != 0
    {
        let (length, tail) = tail.split_first()?;
        let text = tail.get(..usize::from(*length))?;
        if *kind == CNAME {
            name = Some((u32::from_be_bytes(*ssrc), std::str::from_utf8(text).ok()?));
        }
        rest = &tail[text.len()..];
    }
    // The list ends with a zero, and the chunk at a word boundary.
    let read = bytes.len() - rest.len() + 1;
    Some((name, bytes.get(read.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the first name.
#[must_use]
pub fn cname<'a>(item: &Item<'a>) -> Option<(u32, &'a str)> {
    read_cnames(item).next()
}

/// Makes a source description of one name; more than 255 octets are cut.
#[must_use]
pub fn cname_item(ssrc: u32, cname: &str) -> Vec<u8> {
    cnames(&[(ssrc, cname)])
}

/// Makes a source description of several names; more than 31 are omitted.
#[must_use]
pub fn cnames(names: &[(u32, &str)]) -> Vec<u8> {
    let names = &names[..names.len().min(31)];
    // At most 31.
    #[allow(clippy::cast_possible_truncation)]
    let mut out = vec![0x80 | names.len() as u8, 202, 0, 0];
    for (ssrc, cname) in names {
        let text = &cname.as_bytes()[..cname.len().min(255)];
        out.extend_from_slice(&ssrc.to_be_bytes());
        // At most 255.
        #[allow(clippy::cast_possible_truncation)]
        out.extend_from_slice(&[CNAME, text.len() as u8]);
        out.extend_from_slice(text);
        // The list ends with a zero, and the chunk at a word boundary.
        out.push(0);
        while out.len() % 4 != 0 {
            out.push(0);
        }
    }
    #[allow(clippy::cast_possible_truncation)]
    let words = (out.len() / 4 - 1) as u16;
    out[2..4].copy_from_slice(&words.to_be_bytes());
    out
}

/// Makes a sender report without report blocks.
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

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_rtp::rtcp::walk;

    #[test]
    fn names_that_are_written_are_read_whatever_their_lengths() {
        let long = "x".repeat(300);
        let names = [(1, ""), (2, "a"), (3, "ab"), (4, "abc"), (5, "abcd"), (6, long.as_str())];
        let made = cnames(&names);
        let items: Vec<Item> = walk(&made).map(|item| item.expect("an item")).collect();
        let [item] = items.as_slice() else { panic!("{items:?}") };
        let read: Vec<(u32, &str)> = read_cnames(item).collect();
        assert_eq!(read, names.map(|(ssrc, name)| (ssrc, &name[..name.len().min(255)])));
        assert_eq!(cname(item), Some((1, "")));
        // A chunk that announces more than it has.
        let mut cut = cnames(&[(1, "abcdef"), (2, "ab")]);
        cut[9] = 200;
        let item = walk(&cut).next().expect("one").expect("an item");
        assert_eq!(read_cnames(&item).count(), 0);
    }
}
