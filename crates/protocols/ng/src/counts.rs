//! The data plane's counts in a reply of rtpengine, whose own stop at the packets that reach it.

use crate::options::address;
use crate::value::{Placed, Value, decode_as};
use shunt_net::Endpoint;

/// What was forwarded without rtpengine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub packets: u64,
    pub bytes: u64,
}

type Tree<'a> = Value<'a, Placed>;

/// Digits to be replaced.
struct Edit {
    at: usize,
    len: usize,
    value: i64,
}

/// The reply to `query`, or to a `delete` that names a party, with counts added to each stream and to the totals. `of` has those of the stream
/// with this local address and port. All other bytes stay; `None` where nothing changes.
pub fn add_counts(reply: &[u8], of: impl Fn(Endpoint) -> Counts) -> Option<Vec<u8>> {
    let (_, body) = decode_as::<Placed>(reply).ok()?;
    let mut edits = Vec::new();
    let mut totals = [("RTP", Counts::default()), ("RTCP", Counts::default())];
    for (_, tag) in body.get("tags")?.dictionary() {
        let medias = tag.get("medias").map_or(&[][..], Value::list);
        for stream in medias.iter().filter_map(|media| media.get("streams")).flat_map(Value::list) {
            let Some(counts) = local(stream).map(&of) else { continue };
            add(stream.get("stats"), counts, &mut edits);
            let is_rtp = stream
                .get("flags")
                .is_some_and(|flags| flags.list().iter().any(|flag| flag.text() == Some(b"RTP")));
            let total = &mut totals[usize::from(!is_rtp)].1;
            total.packets = total.packets.saturating_add(counts.packets);
            total.bytes = total.bytes.saturating_add(counts.bytes);
        }
    }
    for (kind, counts) in totals {
        add(body.get("totals").and_then(|all| all.get(kind)), counts, &mut edits);
    }
    (!edits.is_empty()).then(|| splice(reply, edits))
}

fn add(stats: Option<&Tree<'_>>, counts: Counts, edits: &mut Vec<Edit>) {
    for (key, more) in [("packets", counts.packets), ("bytes", counts.bytes)] {
        if let (Some(Value::Integer(placed)), true) = (stats.and_then(|stats| stats.get(key)), more > 0) {
            edits.push(Edit {
                at: placed.at,
                len: placed.len,
                value: placed.value.saturating_add_unsigned(more),
            });
        }
    }
}

fn local(stream: &Tree<'_>) -> Option<Endpoint> {
    let Value::Integer(port) = stream.get("local port")? else {
        return None;
    };
    let port = u16::try_from(port.value).ok().filter(|port| *port != 0)?;
    Some(Endpoint::new(address(stream.get("local address")?.text()?)?, port))
}

fn splice(reply: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    edits.sort_by_key(|edit| edit.at);
    let (mut out, mut from) = (Vec::with_capacity(reply.len() + 8 * edits.len()), 0);
    for edit in edits {
        out.extend_from_slice(&reply[from..edit.at]);
        out.extend_from_slice(edit.value.to_string().as_bytes());
        from = edit.at + edit.len;
    }
    out.extend_from_slice(&reply[from..]);
    out
}
