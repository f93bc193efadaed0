//! Remembers sessions that have ended, so that they are not adopted again from a relay that still lists them.

use crate::line::Line;
use crate::recent::Recent;
use std::hash::{BuildHasher, RandomState};

/// Capacity in sessions of each of two generations. rtpengine keeps a deleted call for 30 s by default.
const MOST: usize = 100_000;

/// Hashes of sessions: a Call-ID with its tags would take ten times the memory.
#[derive(Debug)]
pub(crate) struct EndedSessions {
    known: Recent<u64, ()>,
    hasher: RandomState,
}

impl Default for EndedSessions {
    fn default() -> Self {
        Self {
            known: Recent::new(MOST),
            hasher: RandomState::new(),
        }
    }
}

impl EndedSessions {
    /// Remembers all sessions of a line that has ended.
    pub(crate) fn add(&mut self, line: &Line) {
        let own = self.session(&line.call, &line.tag, line.media);
        let branches = line
            .branches
            .iter()
            .map(|branch| self.dialog(&line.call, [&*line.tag, &*branch.tag]));
        for key in branches.chain([own]).collect::<Vec<_>>() {
            self.known.entry(key, || ());
        }
    }

    /// Returns whether the session that rtpproxy names after a tag and a media index has ended.
    pub(crate) fn has_session(&self, call_id: &[u8], tag: &[u8], media: Option<u32>) -> bool {
        self.known.get(&self.session(call_id, tag, media)).is_some()
    }

    /// Returns whether the dialog between two tags has ended.
    pub(crate) fn has_dialog(&self, call_id: &[u8], tags: [&[u8]; 2]) -> bool {
        self.known.get(&self.dialog(call_id, tags)).is_some()
    }

    /// Forgets the end of a session that a command has begun again.
    pub(crate) fn forget_session(&mut self, call_id: &[u8], tag: &[u8], media: Option<u32>) {
        self.known.remove(&self.session(call_id, tag, media));
    }

    /// Forgets the end of a dialog that a command has begun again.
    pub(crate) fn forget_dialog(&mut self, call_id: &[u8], tags: [&[u8]; 2]) {
        self.known.remove(&self.dialog(call_id, tags));
    }

    fn session(&self, call_id: &[u8], tag: &[u8], media: Option<u32>) -> u64 {
        self.hasher.hash_one((call_id, tag, media))
    }

    fn dialog(&self, call_id: &[u8], [first, second]: [&[u8]; 2]) -> u64 {
        self.hasher.hash_one((call_id, first.min(second), first.max(second)))
    }
}
