//! U and L: modifiers and addresses judged, then applied to a session.

use super::steps::Step;
use super::{Engine, MOST_OF_A_CALL, Media, Refusal};
use crate::session::{Leg, Notice, Session, SessionId, TO_CALLEE, TO_CALLER};
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtpproxy::{Command, Direction, ErrorCode, Media as Asked, NotifyTarget, PortReply, Symmetry};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Addresses shorter than this are "none given" to rtpproxy.
const SHORTEST_V4: usize = 7;
const SHORTEST_V6: usize = 2;
/// The largest packet time of modifier Z, ms.
const MOST_RESIZE: u64 = 1000;
pub(super) const MOST_TTL: u64 = 2_000_000_000;

/// A U or L whose modifiers and arguments were judged, not yet applied.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// Of a new session's legs.
    addresses: [IpAddr; 2],
    /// Chosen by l, R or 6.
    local: Option<IpAddr>,
    /// Both letters of bridging are there.
    bridged: bool,
    signalled: Option<Endpoint>,
    asymmetric: bool,
    new_port: bool,
    weak: bool,
    strong: bool,
    ttl: Option<Duration>,
}

impl<M: Media> Engine<M> {
    pub(super) fn update(
        &mut self,
        now: Time,
        command: &Command,
        asked: &Asked,
        found: Option<(SessionId, usize)>,
        peer: Option<IpAddr>,
    ) -> Result<Vec<u8>, Refusal> {
        let offer = Offer {
            strong: !asked.flags.weak,
            ..self.judge(asked)?
        };
        let steps = self.read_steps(command)?;
        let (id, leg) = match found {
            Some((id, leg)) => {
                self.renew(now, id, leg, &offer)?;
                (id, leg)
            }
            None => (self.create(now, asked, &offer)?, TO_CALLEE),
        };
        let notice = self.notice_of(now, asked, peer);
        if let Some(session) = self.table.get_mut(id) {
            session.notice = notice;
        }
        self.finish(now, asked, id, leg, &offer, steps)
    }

    pub(super) fn lookup(
        &mut self,
        now: Time,
        command: &Command,
        asked: &Asked,
        found: Option<(SessionId, usize)>,
    ) -> Result<Vec<u8>, Refusal> {
        let offer = self.judge(asked)?;
        let steps = self.read_steps(command)?;
        let (id, leg) = found.ok_or(Refusal::Zero)?;
        self.renew(now, id, 1 - leg, &offer)?;
        self.finish(now, asked, id, 1 - leg, &offer, steps)
    }

    /// Where the time-out notice goes, if the command names a socket that it may.
    fn notice_of(&mut self, now: Time, asked: &Asked, peer: Option<IpAddr>) -> Option<Notice> {
        let notify = asked.notify?;
        let why = match (NotifyTarget::parse(notify.socket, peer), notify.tag) {
            (Ok(target), Some(tag)) if self.settings.notify.allows(&target, peer) => {
                return Some(Notice { target, tag: tag.to_vec() });
            }
            (Ok(target), Some(_)) => format!("notify socket {target} is not permitted (notify.allow)"),
            (Ok(_), None) => "no tag".to_owned(),
            (Err(error), _) => error.to_string(),
        };
        if let Some(left_out) = self.no_notice.write(now) {
            tracing::warn!(call_id = %asked.session.call_id.escape_ascii(), "no time-out notice: {why}; {left_out} more since the last such line");
        }
        None
    }

    fn finish(&mut self, now: Time, asked: &Asked, id: SessionId, leg: usize, offer: &Offer, steps: Vec<Step>) -> Result<Vec<u8>, Refusal> {
        if let (Some(session), Some(to)) = (self.table.get_mut(id), asked.session.to) {
            let other = if session.tag == asked.session.from.raw {
                to.raw
            } else {
                asked.session.from.raw
            };
            session.other_tag = Some(other.to_vec());
        }
        let mut reply = self.apply(now, id, leg, offer).to_string().into_bytes();
        reply.extend(self.run_steps(now, steps, id, 1 - leg));
        self.look_again(now, id);
        Ok(reply)
    }

    /// Check modifiers and address of a U or L.
    pub(super) fn judge(&self, asked: &Asked) -> Result<Offer, ErrorCode> {
        let flags = &asked.flags;
        let addresses = self.bridge(&flags.directions)?;
        let ttl = flags.ttl.map(|ttl| {
            if (1..=MOST_TTL).contains(&ttl) {
                Ok(ttl)
            } else {
                Err(ErrorCode::UNKNOWN_MODIFIER)
            }
        });
        let ttl = ttl.transpose()?;
        if !flags.unknown.is_empty() {
            return Err(ErrorCode::UNKNOWN_MODIFIER);
        }
        if flags.resize.is_some_and(|ms| ms == 0 || ms >= MOST_RESIZE) {
            return Err(ErrorCode::BAD_RESIZE);
        }
        Ok(Offer {
            addresses,
            // Of two errors this is the one that rtpproxy replies with.
            local: self.local_address(asked, addresses[0])?,
            bridged: flags.directions.len() == 2,
            signalled: signalled(asked)?,
            asymmetric: match flags.symmetry {
                Some(symmetry) => symmetry == Symmetry::Asymmetric,
                None => self.settings.asymmetric,
            },
            new_port: flags.new_port,
            weak: flags.weak,
            strong: false,
            ttl: ttl.map(Duration::from_secs),
        })
    }

    /// The relay addresses of both legs by the letters E and I: the first is the side of the sender, the second that of the address returned.
    fn bridge(&self, directions: &[Direction]) -> Result<[IpAddr; 2], ErrorCode> {
        let own = &self.settings.addresses;
        let mut addresses = [own[0], own[0]];
        for (at, direction) in directions.iter().enumerate() {
            let external = *direction == Direction::External;
            let address = if external {
                own.get(1)
            } else {
                own.first().filter(|_| own.len() > 1)
            };
            match address.filter(|_| at < 2) {
                Some(address) => addresses[if at == 0 { TO_CALLER } else { TO_CALLEE }] = *address,
                None if external => return Err(ErrorCode::NO_EXTERNAL),
                None => return Err(ErrorCode::NO_INTERNAL),
            }
        }
        Ok(addresses)
    }

    /// The address that modifier l or R chooses, or the packet's IP version where there are no letters.
    fn local_address(&self, asked: &Asked, usual: IpAddr) -> Result<Option<IpAddr>, ErrorCode> {
        let flags = &asked.flags;
        if flags.local_label.is_some() {
            // The relay's addresses have no names.
            return Err(ErrorCode::LOCAL_ADDRESS_REFUSED);
        }
        if let Some(local) = flags.local_address.map(|local| local.to_canonical()) {
            return if self.media.can_bind(local) {
                Ok(Some(local))
            } else {
                Err(ErrorCode::NO_PORT)
            };
        }
        if let Some(remote) = flags.remote_address {
            return self
                .media
                .local_address_towards(remote.to_canonical())
                .map(Some)
                .ok_or(ErrorCode::REMOTE_ADDRESS_REFUSED);
        }
        if flags.directions.is_empty() && usual.is_ipv6() != flags.ipv6 {
            let fits = self.settings.addresses.iter().find(|address| address.is_ipv6() == flags.ipv6);
            return fits.copied().map(Some).ok_or(ErrorCode::NO_LOCAL_ADDRESS);
        }
        Ok(None)
    }

    fn create(&mut self, now: Time, asked: &Asked, offer: &Offer) -> Result<SessionId, Refusal> {
        let about = &asked.session;
        if self.table.of_call(about.call_id) >= MOST_OF_A_CALL {
            tracing::warn!("{}: more than {MOST_OF_A_CALL} sessions of one call", about.call_id.escape_ascii());
            return Err(ErrorCode::OVERLOAD.into());
        }
        let addresses = offer.local.map_or(offer.addresses, |local| [local, local]);
        let id = self.table.next_id();
        let session = Session {
            id,
            call_id: about.call_id.into(),
            tag: about.from.raw.to_vec(),
            other_tag: None,
            legs: [Leg::new(addresses[0], offer.weak), Leg::new(addresses[1], false)],
            ttl: self.settings.ttl,
            setup_ttl: self.settings.setup_ttl,
            born: now,
            touched: now,
            strong: offer.strong,
            complete: false,
            notice: None,
        };
        let call_id = Arc::clone(&session.call_id);
        self.table.add(session);
        if let Err(code) = self.open(now, id, &call_id, TO_CALLEE, addresses[TO_CALLEE], ErrorCode::NO_PORT) {
            self.table.remove(id);
            return Err(code.into());
        }
        self.ended.created += 1;
        Ok(id)
    }

    fn open(
        &mut self,
        now: Time,
        id: SessionId,
        call_id: &Arc<[u8]>,
        leg: usize,
        address: IpAddr,
        code: ErrorCode,
    ) -> Result<(), ErrorCode> {
        let port = match self.media.open(now, id, call_id, leg, address) {
            Ok(port) => port,
            Err(error) => {
                if let Some(left_out) = self.no_port.write(now) {
                    tracing::error!(call_id = %call_id.escape_ascii(), "no port: {error}; {left_out} more since the last such line");
                }
                return Err(code);
            }
        };
        if let Some(session) = self.table.get_mut(id) {
            (session.legs[leg].address, session.legs[leg].port) = (address, port);
        }
        Ok(())
    }

    /// A U or L on a known session that is answered with the port of a leg: it is opened, or replaced on modifier N.
    pub(super) fn renew(&mut self, now: Time, id: SessionId, leg: usize, offer: &Offer) -> Result<(), ErrorCode> {
        let Some(session) = self.table.get(id) else {
            return Err(ErrorCode::SESSION_NOT_FOUND);
        };
        let (call_id, current) = (Arc::clone(&session.call_id), &session.legs[leg]);
        if current.port == 0 || offer.new_port {
            let bridged = offer.addresses[TO_CALLEE];
            let address = offer.local.unwrap_or(if offer.new_port && offer.bridged {
                bridged
            } else {
                current.address
            });
            self.open(now, id, &call_id, leg, address, ErrorCode::NO_PORT_FOR_OTHER_LEG)?;
        }
        let Some(session) = self.table.get_mut(id) else { return Ok(()) };
        if leg == TO_CALLER && !session.complete {
            session.complete = true;
            self.media.answered(now, id);
        }
        session.legs[leg].weak |= offer.weak;
        session.strong |= offer.strong;
        session.touched = now;
        Ok(())
    }

    /// What the command says of its party goes to the leg opposite the port that it is answered with.
    pub(super) fn apply(&mut self, now: Time, id: SessionId, leg: usize, offer: &Offer) -> PortReply {
        let Some(session) = self.table.get_mut(id) else {
            return PortReply {
                port: 0,
                address: None,
                family: None,
            };
        };
        let party = &mut session.legs[1 - leg];
        party.signalled = offer.signalled.or(party.signalled);
        party.asymmetric = offer.asymmetric;
        if let Some(ttl) = offer.ttl {
            session.set_ttl(ttl, now);
        }
        self.media.signalled(now, session, 1 - leg);
        let Leg { address, port, .. } = session.legs[leg];
        PortReply::new(Endpoint::new(self.settings.told(address), port))
    }
}

/// The media address; `None` where none is given, on hold, and for port 0.
fn signalled(asked: &Asked) -> Result<Option<Endpoint>, ErrorCode> {
    let v6 = asked.flags.ipv6;
    let Some(endpoint) = asked.endpoint() else {
        let shortest = if v6 { SHORTEST_V6 } else { SHORTEST_V4 };
        let none = asked.is_dash() || asked.on_hold() || asked.address.len() < shortest;
        return if none { Ok(None) } else { Err(ErrorCode::BAD_ADDRESS) };
    };
    if asked.address.contains(&b':') != v6 {
        return Err(ErrorCode::BAD_ADDRESS);
    }
    Ok(Some(endpoint).filter(|endpoint| endpoint.port != 0))
}
