//! All sessions, by Call-ID and in the order of their creation.

use crate::session::{Fit, Session, SessionId, TO_CALLEE, TO_CALLER, fit, media_of};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// The sessions of a relay.
#[derive(Debug, Default)]
pub struct Table {
    sessions: BTreeMap<SessionId, Session>,
    calls: HashMap<Arc<[u8]>, Vec<SessionId>>,
    last: u64,
}

/// What a D did to the sessions that it matched. If neither list has one, that is E50.
#[derive(Debug, Default)]
pub struct Deletion {
    pub removed: Vec<Session>,
    /// Kept by another flag.
    pub kept: Vec<SessionId>,
}

impl Deletion {
    #[must_use]
    pub fn matched(&self) -> bool {
        !self.removed.is_empty() || !self.kept.is_empty()
    }
}

impl Table {
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// How many sessions a call has.
    #[must_use]
    pub fn of_call(&self, call_id: &[u8]) -> usize {
        self.calls.get(call_id).map_or(0, Vec::len)
    }

    /// The number of the next session.
    pub fn next_id(&mut self) -> SessionId {
        self.last += 1;
        SessionId(self.last)
    }

    pub fn add(&mut self, session: Session) {
        self.calls.entry(Arc::clone(&session.call_id)).or_default().push(session.id);
        self.sessions.insert(session.id, session);
    }

    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        if let Some(ids) = self.calls.get_mut(&session.call_id) {
            ids.retain(|known| *known != id);
            if ids.is_empty() {
                self.calls.remove(&session.call_id);
            }
        }
        Some(session)
    }

    /// Empty the table; what was in it comes back.
    pub fn clear(&mut self) -> Vec<Session> {
        self.calls.clear();
        std::mem::take(&mut self.sessions).into_values().collect()
    }

    /// The sessions behind a number, in the order of their creation.
    pub fn after(&self, id: SessionId) -> impl Iterator<Item = &Session> {
        self.sessions
            .range((Bound::Excluded(id), Bound::Unbounded))
            .map(|(_, session)| session)
    }

    fn of(&self, call_id: &[u8]) -> impl Iterator<Item = &Session> {
        self.calls.get(call_id).into_iter().flatten().filter_map(|id| self.sessions.get(id))
    }

    /// The session that a U, L or Q is about, and its leg: [`TO_CALLEE`] if the creator's tag comes first, else [`TO_CALLER`].
    ///
    /// Only one of the tags is compared; rtpproxy ignores the other. A second tag without a media index fits too if the first one's index is
    /// the session's.
    #[must_use]
    pub fn find(&self, call_id: &[u8], from: &[u8], to: Option<&[u8]>) -> Option<(SessionId, usize)> {
        self.of(call_id).find_map(|session| {
            if session.tag == from {
                return Some((session.id, TO_CALLEE));
            }
            let second = match fit(&session.tag, to?)? {
                Fit::Same => true,
                Fit::AllMedia => media_of(&session.tag) == media_of(from),
            };
            second.then_some((session.id, TO_CALLER))
        })
    }

    /// What D does: clears the strong flag (with `weak` the weak flag of the leg that the tags' order tells) of each session that matches, and
    /// removes those without a flag left. A tag with a media index removes one session, a bare tag those of all media.
    pub fn delete(&mut self, call_id: &[u8], from: &[u8], to: Option<&[u8]>, weak: bool) -> Deletion {
        let mut result = Deletion::default();
        let ids = self.calls.get(call_id).cloned().unwrap_or_default();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let first = fit(&session.tag, from).map(|fit| (fit, TO_CALLER));
            let Some((fit, leg)) = first.or_else(|| Some((fit(&session.tag, to?)?, TO_CALLEE))) else {
                continue;
            };
            if weak {
                session.legs[leg].weak = false;
            } else {
                session.strong = false;
            }
            if session.is_held() {
                result.kept.push(id);
                continue;
            }
            result.removed.extend(self.remove(id));
            if fit == Fit::Same {
                break;
            }
        }
        result
    }
}
