//! Where participants are: sources that are latched, connectivity checks, SSRCs, and copies of packets.

use super::Shared;
use super::state::{Place, State};
use shunt_calls::Notice;
use shunt_conference::membership::stream_name;
use shunt_conference::tables::Source;
use shunt_conference::{frames, ice};
use shunt_latch::{Facts, Packet, Verdict};
use shunt_net::Endpoint;
use shunt_rtp::Header;
use std::time::Duration;

/// Between two new SSRCs of one source: more often is no encoder that starts anew.
const NEW_SSRC: Duration = Duration::from_millis(200);

/// A source that would be latched if the one before it has fallen silent.
#[derive(Clone, Debug)]
pub struct Asked {
    pub place: Place,
    pub source: Endpoint,
    pub ssrc: Option<u32>,
    pub payload_type: Option<u8>,
}

impl State {
    /// A packet to a conference's address that no row matches. `Some`: it is to be seen whether the old source still sends.
    pub fn noticed(&mut self, shared: &Shared, notice: &Notice) -> Option<Asked> {
        let now = shared.clock.now();
        let (source, port) = (notice.key.src, notice.key.dst.port);
        let Some(place) = self.at.get(&port).cloned() else {
            // RTCP of a participant has the port after its RTP's.
            if !self.at.contains_key(&(port & !1)) {
                let is_party = self.parties.contains(source.addr);
                self.scanners.missed(now, source, port, is_party);
            }
            return None;
        };
        // RTCP beside RTP (RFC 5761 section 4), STUN or DTLS: never a stream's packet.
        let media = notice
            .media
            .filter(|_| notice.payload_type.is_none_or(|kind| !(64..=95).contains(&kind)))?;
        if self.mixers_at.contains(&source) {
            // A stream for which the row is not there yet, or not any more.
            return None;
        }
        let room = self.rooms.get_mut(&place.conference)?;
        if room.member(&place.participant).is_err() {
            // Where a mixer sends from it has said itself.
            shared.counts.source_mismatches.inc();
            return None;
        }
        let member = room.members.get_mut(&place.participant)?;
        let by_checks = member.ice.is_some();
        let state = member.legs.get_mut(&place.leg)?;
        // Who sends from the very port that its SDP names may send to many: a gateway with one port for all its calls.
        if state.destination != Some(source) {
            self.scanners.touched(now, source, port);
        }
        let before = state.latch.learned();
        if by_checks && before != Some(source) {
            // Where its media comes from is for its checks to say.
            shared.counts.source_mismatches.inc();
            return None;
        }
        let packet = Packet {
            at: now,
            source,
            media: Some(media),
        };
        let verdict = state.latch.observe(&shared.policy, &self.parties, &self.scanners, &packet, None);
        let asked = Asked {
            place: place.clone(),
            source,
            ssrc: Some(media.ssrc),
            payload_type: notice.payload_type,
        };
        match verdict {
            Verdict::Known => {
                member.last_packet = now;
                self.learn_ssrc(shared, &place, media.ssrc, notice.payload_type);
            }
            Verdict::Latched | Verdict::Moved | Verdict::Restored => {
                self.moved(shared, &asked);
            }
            Verdict::Contested => {
                let learned = state.latch.learned();
                if learned != before {
                    room.set_source(&place.participant, place.leg, learned, now);
                    shared.tell_source(&place, learned);
                    self.touch(shared, &place.conference);
                }
            }
            Verdict::Ask if !state.moving => {
                state.moving = true;
                return Some(asked);
            }
            Verdict::Ignored(_) => {
                shared.counts.source_mismatches.inc();
            }
            Verdict::Waiting | Verdict::Ask => {}
        }
        None
    }

    /// Whether packets of the old source came lately is known now.
    pub fn answered(&mut self, shared: &Shared, asked: &Asked, facts: Option<Facts>) {
        let Some(room) = self.rooms.get_mut(&asked.place.conference) else {
            return;
        };
        let Some(member) = room.members.get_mut(&asked.place.participant) else {
            return;
        };
        let Some(state) = member.legs.get_mut(&asked.place.leg) else {
            return;
        };
        state.moving = false;
        let Some(facts) = facts else { return };
        let verdict = state.latch.answer(shared.clock.now(), &shared.policy, asked.source, facts);
        if matches!(verdict, Verdict::Latched | Verdict::Moved | Verdict::Restored) {
            self.moved(shared, asked);
        }
    }

    /// A leg's media comes from this source from now on.
    fn moved(&mut self, shared: &Shared, asked: &Asked) {
        let now = shared.clock.now();
        let Some(room) = self.rooms.get_mut(&asked.place.conference) else {
            return;
        };
        room.set_source(&asked.place.participant, asked.place.leg, Some(asked.source), now);
        if let (Some(ssrc), 0) = (asked.ssrc, asked.place.leg.1) {
            room.learn(&asked.place.participant, asked.place.leg, ssrc, asked.payload_type, now);
        }
        shared.tell_source(&asked.place, Some(asked.source));
        shared.serve_listening(room, &asked.place.participant);
        shared.store.put(&room.keep());
        self.touch(shared, &asked.place.conference);
    }

    /// The source sends a stream that may not be known yet: another one, or its encoder has started anew.
    fn learn_ssrc(&mut self, shared: &Shared, place: &Place, ssrc: u32, payload_type: Option<u8>) {
        let now = shared.clock.now();
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let Some((leg, state)) = room.leg(&place.participant, place.leg) else {
            return;
        };
        let soon = state.new_ssrc_at.is_some_and(|at| now.since(at) < NEW_SSRC);
        if leg.ssrcs.contains(&ssrc) || place.leg.1 > 0 || soon {
            return;
        }
        let repair = room.learn(&place.participant, place.leg, ssrc, payload_type, now);
        if repair {
            shared.tell(&place.conference, "repair", Some(&place.participant), Some(place.leg.0), |facts| {
                facts.insert("ssrc".into(), ssrc.into());
                facts.insert("payload_type".into(), payload_type.into());
            });
        }
        shared.store.put(&room.keep());
        self.touch(shared, &place.conference);
    }

    /// A STUN packet at a relay address. A check with a participant's credentials is answered from where it arrived, and with a nomination it is
    /// the word on where its media comes from.
    pub fn checked(&mut self, shared: &Shared, port: u16, from: Endpoint, data: &[u8]) {
        let now = shared.clock.now();
        let relay = port & !1;
        let found = self.at.get(&relay).cloned().and_then(|place| {
            let member = self.rooms.get(&place.conference)?.members.get(&place.participant)?;
            Some((place, ice::check(data, from, member.ice.as_ref()?)?))
        });
        let Some((place, check)) = found else {
            shared.counts.stun_refused.inc();
            return;
        };
        shared.counts.stun_answered.inc();
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let Some(member) = room.members.get_mut(&place.participant) else {
            return;
        };
        member.last_packet = now;
        let Some(state) = member.legs.get_mut(&place.leg) else { return };
        if let Some(sockets) = &state.sockets {
            sockets.send(port != relay, from, &check.answer);
        }
        if check.nominated && port == relay && state.latch.learned() != Some(from) {
            state.latch.adopt(now, from, None);
            let asked = Asked {
                place,
                source: from,
                ssrc: None,
                payload_type: None,
            };
            self.moved(shared, &asked);
        }
    }

    /// A packet that the data plane has copied to the agent: it may say which layers its stream has, and may be asked for again.
    pub fn copied(&mut self, shared: &Shared, frame: &[u8]) {
        let Some((flow, payload)) = frames::datagram(frame) else { return };
        let Some(place) = self.at.get(&flow.dst.port) else { return };
        let Ok(header) = Header::parse(payload) else { return };
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        if flow.dst.addr != shared.address || room.leg(&place.participant, place.leg).and_then(|(leg, _)| leg.source) != Some(flow.src) {
            return;
        }
        shared.counts.packets_copied.inc();
        let source = Source {
            conference: place.conference.clone(),
            sender: place.participant.clone(),
            stream: stream_name(place.leg.0, header.ssrc),
        };
        if let Some(cache) = room.caches.get_mut(&source) {
            // What is malformed is counted by who gets it.
            let _ = cache.take(payload);
        }
        match self.planner.numbering.see(&source, payload) {
            Ok(true) => {
                let name = place.conference.clone();
                self.touch(shared, &name);
            }
            Ok(false) => {}
            Err(error) => tracing::debug!("conference {}: layers of {}: {error}", place.conference, place.participant),
        }
    }
}
