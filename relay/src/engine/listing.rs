//! The list of sessions, `Is <number>`: an extension, so that an agent can take up calls that were set up while it was away.

use super::statistics::ceiling;
use super::{Engine, Media, Refusal};
use crate::session::{Session, SessionId, TO_CALLEE, TO_CALLER};
use shunt_net::Endpoint;
use shunt_rtpproxy::listing::{self, Party, Record};
use shunt_rtpproxy::{Command, ErrorCode};

impl<M: Media> Engine<M> {
    /// Sessions behind a number, as many as a reply holds.
    pub(super) fn list(&mut self, command: &Command) -> Result<Vec<u8>, Refusal> {
        let [after] = command.arguments[..] else {
            return Err(ErrorCode::ARGUMENT_COUNT.into());
        };
        if command.modifiers.len() != 1 {
            return Err(ErrorCode::BAD_INFO_MODIFIER.into());
        }
        let after = std::str::from_utf8(after)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(ErrorCode::SYNTAX)?;
        let mut reply = listing::Writer::default();
        for session in self.table.after(SessionId(after)) {
            if !reply.add(session.id.0, &self.record(session)) {
                break;
            }
        }
        Ok(reply.finish())
    }

    fn record<'a>(&self, session: &'a Session) -> Record<'a> {
        // The leg towards a party is the one that its own U or L described.
        let party = |leg: usize| {
            let towards = &session.legs[leg];
            Party {
                relay: (towards.port != 0).then(|| Endpoint::new(towards.address, towards.port)),
                signalled: towards.signalled,
                learned: self.media.learned(session.id, leg),
                asymmetric: towards.asymmetric,
            }
        };
        Record {
            call_id: &session.call_id,
            from: &session.tag,
            to: session.other_tag.as_deref(),
            ttl: ceiling(session.limit()),
            complete: session.complete,
            caller: party(TO_CALLER),
            callee: party(TO_CALLEE),
            notify: session
                .notice
                .as_ref()
                .map(|notice| (notice.target.to_string().into_bytes(), notice.tag.clone())),
        }
    }
}
