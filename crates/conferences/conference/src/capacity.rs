//! Computes how many conferences fit, by design, and which limit applies first (Scallop, section 6.1 and figure 17).
//!
//! The paper's figures are for a Tofino 2 of 12.8 Tbit/s: 533K two-party conferences, 128K NRA, 42.7K RA-R, and 4.3K RA-SR with ten sending
//! participants. Trees limit the last three (the paper uses K = 1024 there). The first is 12.8 Tbit/s divided by 24 Mbit/s, 533,333.

use crate::tables::Limits;
use crate::trees::Design;
use std::collections::BTreeMap;
use thiserror::Error;

/// Conferences that share a tree.
const HALVES: u64 = 2;
/// Rows of `layer` for a layered stream: three places of Chromium's VP8 structure, the largest that browsers send.
pub const LAYER_ROWS: u64 = 21;

/// Properties of each conference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub participants: u64,
    /// `None`: all.
    pub senders: Option<u64>,
    /// Layered streams of each sender.
    pub layered: u64,
    /// Streams of each sender.
    pub streams: u64,
    /// Receivers below the highest quality; `None`: all.
    pub adapted: Option<u64>,
    /// bit/s of all streams of one sender.
    pub rate: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            participants: 10,
            senders: None,
            layered: 1,
            streams: 2,
            adapted: None,
            rate: 12e6,
        }
    }
}

/// Rows of a data plane's tables; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    pub conference: Option<u64>,
    pub copy: Option<u64>,
    pub layer: Option<u64>,
    pub relay: Option<u64>,
}

/// The data plane.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    pub limits: Limits,
    /// Trees of a set, one for each quality.
    pub qualities: u64,
    /// bit/s.
    pub line_rate: f64,
    pub tables: Tables,
}

impl Default for Plane {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            qualities: 3,
            line_rate: 12.8e12,
            tables: Tables::default(),
        }
    }
}

/// The number of conferences that fit, and the number that each limit alone would allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub conferences: u64,
    pub bound_by: &'static str,
    pub allowed: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchLoad {
    #[error("a conference has two participants or more, one of them sends something, and there is a quality")]
    Nobody,
    #[error("{rids} RIDs of a tree are for {participants} participants")]
    Rids { rids: u64, participants: u64 },
}

/// Returns how many such conferences fit.
///
/// # Errors
/// No such conference can exist.
pub fn capacity(design: Design, load: &Load, plane: &Plane) -> Result<Capacity, NoSuchLoad> {
    let people = if design == Design::TwoParty { 2 } else { load.participants };
    let senders = load.senders.unwrap_or(people).min(people);
    if people < 2 || senders < 1 || plane.qualities < 1 || load.rate <= 0.0 {
        return Err(NoSuchLoad::Nobody);
    }
    let per_conference = (senders * (people - 1)) as f64 * load.rate;
    // The value is not negative, and an overflowing rate is unlimited.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let mut allowed = BTreeMap::from([("line rate", (plane.line_rate / per_conference) as u64)]);
    if design != Design::TwoParty {
        engine(design, load, plane, (people, senders), &mut allowed)?;
    }
    rows(design, load, &plane.tables, (people, senders), &mut allowed);
    let smallest = allowed.iter().min_by_key(|(_, count)| **count);
    let (bound_by, conferences) = smallest.map_or(("line rate", 0), |(name, count)| (*name, *count));
    Ok(Capacity {
        conferences,
        bound_by,
        allowed,
    })
}

fn engine(
    design: Design,
    load: &Load,
    plane: &Plane,
    (people, senders): (u64, u64),
    allowed: &mut BTreeMap<&'static str, u64>,
) -> Result<(), NoSuchLoad> {
    let (limits, qualities) = (&plane.limits, plane.qualities);
    let rids = u64::from(limits.rids);
    if HALVES * people >= rids {
        let participants = rids.saturating_sub(1) / HALVES;
        return Err(NoSuchLoad::Rids { rids, participants });
    }
    let sets = u64::from(limits.trees.saturating_sub(1)) / qualities;
    let (trees, nodes) = match design {
        Design::RaSr => (HALVES * sets / senders, qualities * senders * (people - 1)),
        Design::RaR => (HALVES * sets, qualities * people),
        _ => (HALVES * sets * qualities, people),
    };
    allowed.insert("trees", trees);
    allowed.insert("L1 nodes", u64::from(limits.nodes.saturating_sub(1)) / nodes);
    let numbers = u64::from(limits.streams.saturating_sub(1));
    if let Some(count) = numbers.checked_div(senders * load.streams) {
        allowed.insert("stream numbers", count);
    }
    let adapted = load.adapted.unwrap_or(people).min(people);
    // No participant receives its own stream.
    let rewritten = (adapted * senders - adapted.min(senders)) * load.layered;
    if let (true, Some(count)) = (design != Design::Nra, u64::from(limits.sequence_states).checked_div(rewritten)) {
        allowed.insert("rewritten streams", count);
    }
    Ok(())
}

fn rows(design: Design, load: &Load, tables: &Tables, (people, senders): (u64, u64), allowed: &mut BTreeMap<&'static str, u64>) {
    let streams = senders * load.streams;
    let needed = if design == Design::TwoParty {
        vec![("rows of relay", tables.relay, streams)]
    } else {
        vec![
            ("rows of conference", tables.conference, streams),
            ("rows of copy", tables.copy, streams * (people - 1)),
            ("rows of layer", tables.layer, senders * load.layered * LAYER_ROWS),
        ]
    };
    for (name, there, needed) in needed {
        if let Some(count) = there.and_then(|there| there.checked_div(needed)) {
            allowed.insert(name, count);
        }
    }
}
