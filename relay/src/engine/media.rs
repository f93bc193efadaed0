//! What the commands do to sockets.

use crate::ports::NoPort;
use crate::session::{Session, SessionId};
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;

/// Packets of one session and component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub from_callee: u64,
    pub from_caller: u64,
    pub relayed: u64,
    /// There was nowhere to send to, or the kernel refused.
    pub dropped: u64,
    pub rtcp_from_callee: u64,
    pub rtcp_from_caller: u64,
}

/// Packets of all sessions, ended ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub received: u64,
    pub relayed: u64,
    pub discarded: u64,
}

/// Sockets and what arrives at them.
pub trait Media {
    /// Bind a port pair on an address for a leg, in place of the one that it has; the even port.
    ///
    /// # Errors
    /// No pair can be had; then the leg keeps the one that it has.
    fn open(&mut self, now: Time, id: SessionId, call_id: &Arc<[u8]>, leg: usize, address: IpAddr) -> Result<u16, NoPort>;

    /// The leg's signalled address or its flags were set (again).
    fn signalled(&mut self, now: Time, session: &Session, leg: usize);

    /// The session is complete: both parties begin to send.
    fn answered(&mut self, now: Time, id: SessionId);

    /// Close the session's sockets; what it counted.
    fn close(&mut self, now: Time, id: SessionId) -> Counts;

    /// Mark what leaves a leg's ports; whether the kernel takes it.
    fn set_tos(&mut self, id: SessionId, leg: usize, tos: u8) -> bool;

    fn counts(&self, id: SessionId) -> Counts;

    /// When media came last.
    fn last_packet(&self, id: SessionId) -> Time;

    /// The learned source of a leg's RTP.
    fn learned(&self, id: SessionId, leg: usize) -> Option<Endpoint>;

    fn totals(&self) -> Totals;

    /// Share of one processor that the process used lately, percent.
    fn load(&mut self, now: Time) -> f64;

    fn can_bind(&self, ip: IpAddr) -> bool;

    /// The local address from which the kernel would send there.
    fn local_address_towards(&self, ip: IpAddr) -> Option<IpAddr>;
}
