//! Where participants are: sources that are latched, connectivity checks, SSRCs, and copies of packets.

use super::{Book, Count, Decision, Level, Place, Turn};
use crate::membership::stream_name;
use crate::tables::Source;
use crate::{frames, ice};
use shunt_calls::Notice;
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

impl Book {
    /// A packet to a conference's address that no row matches.
    pub fn noticed(&mut self, turn: &mut Turn, notice: &Notice) {
        let _ = self.notice(turn, notice);
    }

    /// `None`: the notice ends here.
    fn notice(&mut self, turn: &mut Turn, notice: &Notice) -> Option<()> {
        let now = turn.now;
        let policy = self.settings.policy;
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
            turn.count(Count::SourceMismatch);
            return None;
        }
        let member = room.members.get_mut(&place.participant)?;
        let by_checks = member.ice.is_some();
        let leg = room.conference.get_mut(&place.participant).ok()?.legs.get_mut(&place.leg)?;
        // Who sends from the very port that its SDP names may send to many: a gateway with one port for all its calls.
        if leg.destination != Some(source) {
            self.scanners.touched(now, source, port);
        }
        let before = leg.latch.learned();
        if by_checks && before != Some(source) {
            // Where its media comes from is for its checks to say.
            turn.count(Count::SourceMismatch);
            return None;
        }
        let packet = Packet {
            at: now,
            source,
            media: Some(media),
        };
        let verdict = leg.latch.observe(&policy, &self.parties, &self.scanners, &packet, None);
        let asked = Asked {
            place: place.clone(),
            source,
            ssrc: Some(media.ssrc),
            payload_type: notice.payload_type,
        };
        match verdict {
            Verdict::Known => {
                member.last_packet = now;
                self.learn_ssrc(turn, &place, media.ssrc, notice.payload_type);
            }
            Verdict::Latched | Verdict::Moved | Verdict::Restored => {
                self.moved(turn, &asked);
            }
            Verdict::Contested => {
                let learned = leg.latch.learned();
                if learned != before {
                    room.set_source(&place.participant, place.leg, learned, now);
                    turn.tell_source(&place, learned);
                    turn.touch(&place.conference);
                }
            }
            Verdict::Ask if !leg.moving => {
                leg.moving = true;
                turn.decide(Decision::Ask(asked));
            }
            Verdict::Ignored(_) => {
                turn.count(Count::SourceMismatch);
            }
            Verdict::Waiting | Verdict::Ask => {}
        }
        None
    }

    /// Whether packets of the old source came lately is known now.
    pub fn answered(&mut self, turn: &mut Turn, asked: &Asked, facts: Option<Facts>) {
        let room = self.rooms.get_mut(&asked.place.conference);
        let Some(leg) = room.and_then(|room| room.leg_mut(&asked.place.participant, asked.place.leg)) else {
            return;
        };
        leg.moving = false;
        let Some(facts) = facts else { return };
        let verdict = leg.latch.answer(turn.now, &self.settings.policy, asked.source, facts);
        if matches!(verdict, Verdict::Latched | Verdict::Moved | Verdict::Restored) {
            self.moved(turn, asked);
        }
    }

    /// A leg's media comes from this source from now on.
    fn moved(&mut self, turn: &mut Turn, asked: &Asked) {
        let now = turn.now;
        let Some(room) = self.rooms.get_mut(&asked.place.conference) else {
            return;
        };
        room.set_source(&asked.place.participant, asked.place.leg, Some(asked.source), now);
        if let (Some(ssrc), 0) = (asked.ssrc, asked.place.leg.1) {
            room.learn(&asked.place.participant, asked.place.leg, ssrc, asked.payload_type, now);
        }
        turn.tell_source(&asked.place, Some(asked.source));
        room.serve_listening(turn, &asked.place.participant);
        turn.keep(&room.conference.name);
        turn.touch(&asked.place.conference);
    }

    /// The source sends a stream that may not be known yet: another one, or its encoder has started anew.
    fn learn_ssrc(&mut self, turn: &mut Turn, place: &Place, ssrc: u32, payload_type: Option<u8>) {
        let now = turn.now;
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let Some(leg) = room.leg(&place.participant, place.leg) else {
            return;
        };
        let soon = leg.new_ssrc_at.is_some_and(|at| now.since(at) < NEW_SSRC);
        if leg.ssrcs.contains(&ssrc) || place.leg.1 > 0 || soon {
            return;
        }
        let repair = room.learn(&place.participant, place.leg, ssrc, payload_type, now);
        if repair {
            turn.tell(&place.conference, "repair", Some(&place.participant), Some(place.leg.0), |facts| {
                facts.insert("ssrc".into(), ssrc.into());
                facts.insert("payload_type".into(), payload_type.into());
            });
        }
        turn.keep(&room.conference.name);
        turn.touch(&place.conference);
    }

    /// A STUN packet at a relay address. A check with a participant's credentials is answered from where it arrived, and with a nomination it is
    /// the word on where its media comes from.
    pub fn checked(&mut self, turn: &mut Turn, port: u16, from: Endpoint, data: &[u8]) {
        let now = turn.now;
        let relay = port & !1;
        let found = self.at.get(&relay).cloned().and_then(|place| {
            let member = self.rooms.get(&place.conference)?.members.get(&place.participant)?;
            Some((place, ice::check(data, from, member.ice.as_ref()?)?))
        });
        let Some((place, check)) = found else {
            turn.count(Count::StunRefused);
            return;
        };
        turn.count(Count::StunAnswered);
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let Some(member) = room.members.get_mut(&place.participant) else {
            return;
        };
        member.last_packet = now;
        let Some(leg) = room.leg_mut(&place.participant, place.leg) else {
            return;
        };
        turn.decide(Decision::Send {
            from: Endpoint::new(leg.relay.addr, port),
            to: from,
            data: check.answer,
        });
        if check.nominated && port == relay && leg.latch.learned() != Some(from) {
            leg.latch.adopt(now, from, None);
            let asked = Asked {
                place,
                source: from,
                ssrc: None,
                payload_type: None,
            };
            self.moved(turn, &asked);
        }
    }

    /// A packet that the data plane has copied to the agent: it may say which layers its stream has, and may be asked for again.
    pub fn copied(&mut self, turn: &mut Turn, frame: &[u8]) {
        let Some((flow, payload)) = frames::datagram(frame) else { return };
        let Some(place) = self.at.get(&flow.dst.port) else { return };
        let Ok(header) = Header::parse(payload) else { return };
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        if flow.dst.addr != self.settings.address || room.leg(&place.participant, place.leg).and_then(|leg| leg.source) != Some(flow.src) {
            return;
        }
        turn.count(Count::PacketCopied);
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
                turn.touch(&name);
            }
            Ok(false) => {}
            Err(error) => turn.log(
                Level::Debug,
                format!("conference {}: layers of {}: {error}", place.conference, place.participant),
            ),
        }
    }
}
