//! Copies of SIP messages: the addresses of parties, and the end of dialogs.

use super::Book;
use crate::alike::Alike;
use crate::call::Call;
use crate::decision::Decision;
use crate::ids::{LineId, Side};
use crate::line::Line;
use crate::reason::Reason;
use crate::sdp::{Sdp, SdpKind};
use shunt_hep::sip::{Message, Sdp as Description, SdpMedia};
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Limit on remembered tags of one Call-ID, addresses of one tag, and media lines of one description.
const MOST_TAGS: usize = 8;
const MOST_ADDRESSES: usize = 4;
const MOST_MEDIA: usize = 16;

/// What SDP said of one media line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MediaFacts {
    pub(super) line: Sdp,
    pub(super) rtcp: Option<Endpoint>,
    pub(super) muxes: bool,
}

#[derive(Clone, Debug, Default)]
struct SightedParty {
    tag: Box<[u8]>,
    addresses: Vec<IpAddr>,
    /// Destinations of its INVITEs.
    called: Vec<IpAddr>,
    media: Vec<MediaFacts>,
    confirmed: bool,
    /// Digest of the party's last offer or answer over NG.
    command: Option<u64>,
}

/// What copies of SIP have shown for one Call-ID.
#[derive(Clone, Debug, Default)]
pub(super) struct SipSeen {
    parties: Vec<SightedParty>,
}

impl SipSeen {
    fn party(&mut self, tag: &[u8]) -> &mut SightedParty {
        if let Some(at) = self.parties.iter().position(|party| *party.tag == *tag) {
            return &mut self.parties[at];
        }
        if self.parties.len() >= MOST_TAGS {
            self.parties.remove(0);
        }
        let at = self.parties.len();
        // A hundred thousand calls keep these vectors: most have two parties with one address each.
        self.parties.reserve_exact(2 - at.min(1));
        self.parties.push(SightedParty {
            tag: tag.into(),
            ..SightedParty::default()
        });
        &mut self.parties[at]
    }
}

/// Returns the Call-ID of SIP if this one can be rtp_relay's name of a branch: `<Call-ID>-<branch>`.
#[must_use]
pub fn stem(call_id: &[u8]) -> Option<&[u8]> {
    let dash = call_id.iter().rposition(|byte| *byte == b'-')?;
    let branch = &call_id[dash + 1..];
    (!branch.is_empty() && branch.iter().all(u8::is_ascii_digit)).then_some(&call_id[..dash])
}

impl Book {
    /// Handles a copy of a SIP message that the SIP server received or sent.
    pub fn sip(&mut self, now: Time, source: Endpoint, destination: Endpoint, message: &Message) -> Vec<Decision> {
        let is_invite = message.cseq_method() == b"INVITE";
        let success = is_invite && message.status().is_some_and(|status| (200..300).contains(&status));
        match (message.method(), message.status()) {
            (Some(b"BYE" | b"CANCEL"), _) => self.dialog_ends(now, message),
            (Some(_), _) => self.sight(now, source, message.from_tag(), message.vias() <= 1, false, message),
            (None, Some(101..300)) => {
                if let Some(tag) = message.to_tag().filter(|_| is_invite || message.sdp().is_some()) {
                    self.sight(now, source, tag, true, success, message);
                }
            }
            (None, Some(300..)) if is_invite => self.rejected(now, message),
            _ => {}
        }
        if message.method() == Some(b"INVITE") && self.learner.parties.is_own(source.addr) && !self.learner.parties.is_own(destination.addr)
        {
            self.called(now, message, destination.addr);
        }
        self.take()
    }

    /// Handles a message of the party with this tag. `direct`: no proxy has forwarded it.
    fn sight(&mut self, now: Time, source: Endpoint, tag: &[u8], direct: bool, confirmed: bool, message: &Message) {
        // Messages that the SIP server forwards contain the relay's addresses.
        let own = self.learner.parties.is_own(source.addr);
        if tag.is_empty() || (own && !confirmed) {
            return;
        }
        let sdp = message.sdp().filter(|_| !own);
        let party = self.sip_seen.entry(message.call_id().into(), SipSeen::default).party(tag);
        party.confirmed |= confirmed;
        if direct && !own {
            remember(&mut party.addresses, source.addr);
        }
        if let Some(sdp) = sdp {
            let lines = sdp.media.iter().take(MOST_MEDIA);
            party.media = lines.map(|media| media_facts(media, &mut self.sdp_kinds)).collect();
        }
        let tag: Box<[u8]> = tag.into();
        for id in self.lines_of(message.call_id()) {
            self.with(id, |book, line| {
                let mut news = false;
                for branch in &mut line.branches {
                    let first = confirmed && !branch.confirmed && branch.tag == tag;
                    branch.confirmed |= first;
                    news |= first;
                }
                if let Some(side) = line.side_of(&tag) {
                    news |= book.name_leg(line, side, now);
                }
                // Most copies repeat known facts.
                if news {
                    book.mark(line);
                    book.sync(line, now);
                }
            });
        }
    }

    /// Applies what a command with SDP says about the party with this tag. `digest`: digest of the command. Returns whether it repeats the
    /// party's last one.
    pub(super) fn sight_description(
        &mut self,
        call_id: &[u8],
        tag: &[u8],
        sdp: Option<&Description>,
        source: Option<IpAddr>,
        digest: u64,
    ) -> bool {
        let party = self.sip_seen.entry(call_id.into(), SipSeen::default).party(tag);
        if let Some(source) = source {
            remember(&mut party.addresses, source);
        }
        if let Some(sdp) = sdp {
            let lines = sdp.media.iter().take(MOST_MEDIA);
            party.media = lines.map(|media| media_facts(media, &mut self.sdp_kinds)).collect();
        }
        let repeated = party.command.replace(digest) == Some(digest);
        if !repeated {
            // The same answer to another offer is a new agreement.
            let seen = self.sip_seen.entry(call_id.into(), SipSeen::default);
            let others = seen.parties.iter_mut().filter(|party| *party.tag != *tag);
            others.for_each(|party| party.command = None);
        }
        repeated
    }

    /// Handles an outgoing INVITE: the callee is at this address, and may send before the answer.
    fn called(&mut self, now: Time, message: &Message, addr: IpAddr) {
        let seen = self.sip_seen.entry(message.call_id().into(), SipSeen::default);
        remember(&mut seen.party(message.from_tag()).called, addr);
        for id in self.lines_of(message.call_id()) {
            self.with(id, |book, line| {
                let waits = line.other_tag().is_none() && *line.tag == *message.from_tag();
                if waits && book.name_leg(line, Side::Callee, now) {
                    book.sync(line, now);
                }
            });
        }
    }

    /// Returns the lines of a SIP Call-ID, including those under the names that rtp_relay gives its branches.
    fn lines_of(&self, call_id: &[u8]) -> Vec<LineId> {
        let most = self.settings.limits.legs_per_call;
        let own = self.calls.get(call_id).into_iter();
        let branches = self.branches.get(call_id).into_iter().flatten().take(most);
        own.chain(branches.filter_map(|key| self.calls.get(key)))
            .flat_map(Call::ids)
            .take(most)
            .collect()
    }

    /// Returns the lines of a dialog, except lines with a different known tag: one branch of a fork may end without the others.
    fn lines_of_dialog(&self, message: &Message) -> Vec<LineId> {
        let tags = [Some(message.from_tag()), message.to_tag()];
        let fits = |line: &Line| {
            let tags = || tags.into_iter().flatten().filter(|tag| !tag.is_empty());
            let others: Vec<&[u8]> = tags().filter(|tag| **tag != *line.tag).collect();
            let named = tags().any(|tag| *tag == *line.tag);
            named
                && others
                    .iter()
                    .all(|tag| line.other_tag().is_none_or(|known| known == *tag) && !line.is_lost_branch(tag))
        };
        let lines = self.lines_of(message.call_id());
        lines.into_iter().filter(|id| self.lines.get(id).is_some_and(&fits)).collect()
    }

    /// Handles a BYE or CANCEL: removes entries without waiting for the relay's delete.
    fn dialog_ends(&mut self, now: Time, message: &Message) {
        for id in self.lines_of_dialog(message) {
            self.with(id, |book, line| {
                // After a 2xx, a CANCEL concerns only the branches that lost.
                let of_others = message.method() == Some(b"CANCEL") && line.is_established();
                if !of_others && line.suspended != Some(Reason::ByeSeen) {
                    book.suspend(line, Reason::ByeSeen, Some(now + book.settings.bye_grace));
                    book.sync(line, now);
                }
            });
        }
    }

    /// Handles a rejected re-INVITE: the media stays where it was, and the offer is discarded.
    fn rejected(&mut self, now: Time, message: &Message) {
        for id in self.lines_of_dialog(message) {
            self.with(id, |book, line| {
                for side in Side::BOTH {
                    line.leg_mut(side).offered = None;
                    book.name_leg(line, side, now);
                }
                if line.suspended == Some(Reason::ReInvite) {
                    book.resume(line, now);
                }
                book.sync(line, now);
            });
        }
    }

    /// Returns what copies of SIP have shown about a line's party, while it is remembered: the source addresses of its messages, or the
    /// address where it is called, and its SDP.
    pub(super) fn sighted_of(&self, line: &mut Line, side: Side) -> (Vec<IpAddr>, Option<MediaFacts>) {
        let call_id = &*line.call;
        let seen = self.sip_seen.get(call_id).or_else(|| self.sip_seen.get(stem(call_id)?));
        let party = |tag: &[u8]| seen?.parties.iter().find(|party| *party.tag == *tag);
        let Some(tag) = line.tag_of(side) else {
            // The callee has not sent anything, so its address is the INVITE's destination.
            return (party(&line.tag).map_or_else(Vec::new, |caller| caller.called.clone()), None);
        };
        let Some(party) = party(tag) else {
            return (Vec::new(), None);
        };
        let at = line.media.unwrap_or(1).checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let facts = at.and_then(|at| party.media.get(at)).cloned();
        let found = (party.addresses.clone(), facts);
        if party.confirmed
            && side == Side::Callee
            && let Some(branch) = line.branches.last_mut()
        {
            branch.confirmed = true;
        }
        found
    }
}

fn remember(addresses: &mut Vec<IpAddr>, addr: IpAddr) {
    if addresses.contains(&addr) {
        return;
    }
    if addresses.len() >= MOST_ADDRESSES {
        addresses.remove(0);
    }
    addresses.reserve_exact(1);
    addresses.push(addr);
}

fn media_facts(media: &SdpMedia, kinds: &mut Alike<SdpKind>) -> MediaFacts {
    MediaFacts {
        line: kinds.line(media),
        rtcp: media.rtcp(),
        muxes: media.rtcp_mux,
    }
}
