//! One UDP port of a session: it receives from one party, and sends what the opposite port received to it.

use super::contest::Contest;
use super::counters::{Counter, PortCounters, ThreadCounters};
use super::held::Held;
use super::outgoing::Outgoing;
use shunt_latch::{Component, Latch, Time};
use shunt_net::Endpoint;
use shunt_rtp::{Packet as Protocol, Source, demux};
use shunt_udp::{Address, Batch, Socket};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Over which time a limit of packets is counted.
const WINDOW: Duration = Duration::from_millis(250);

/// Most packets per second of the party that are relayed; further ones are dropped. Those of unknown sources do not count.
#[derive(Debug, Default)]
struct Limit {
    /// In a window; `None`: no limit.
    most: Option<u64>,
    ends: Time,
    count: u64,
}

impl Limit {
    fn new(per_second: u64) -> Self {
        Self {
            most: (per_second > 0).then(|| per_second.div_ceil(4)),
            ..Self::default()
        }
    }

    /// How many of so many packets may be relayed.
    fn allow(&mut self, now: Time, packets: usize) -> usize {
        let Some(most) = self.most else { return packets };
        if now >= self.ends {
            (self.ends, self.count) = (now + WINDOW, 0);
        }
        let room = most.saturating_sub(self.count);
        self.count += packets as u64;
        usize::try_from(room).unwrap_or(usize::MAX).min(packets)
    }
}

/// A port as its thread knows it.
#[derive(Debug)]
pub struct Port {
    pub socket: Arc<Socket>,
    pub counters: Arc<PortCounters>,
    pub component: Component,
    pub call_id: Arc<[u8]>,
    /// The relay's address and port.
    pub local: Endpoint,
    pub latch: Latch,
    pub asymmetric: bool,
    pub signalled: Option<Endpoint>,
    /// The only sender whose packets take the short way.
    pub source: Address,
    /// Where packets for the party go.
    pub remote: Address,
    /// Places of other ports: of the other leg, and of the other component.
    pub opposite: Option<usize>,
    pub sibling: Option<usize>,
    pub last_packet: Time,
    pub held: Held,
    /// Packets for the party that wait until it is latched.
    pub outgoing: Outgoing,
    pub contest: Contest,
    limit: Limit,
}

impl Port {
    pub fn new(
        socket: Arc<Socket>,
        counters: Arc<PortCounters>,
        component: Component,
        call_id: Arc<[u8]>,
        local: Endpoint,
        packet_limit: u64,
    ) -> Self {
        Self {
            socket,
            last_packet: counters.last_packet(),
            counters,
            component,
            call_id,
            local,
            latch: Latch::new(component),
            asymmetric: false,
            signalled: None,
            source: Address::default(),
            remote: Address::default(),
            opposite: None,
            sibling: None,
            held: Held::default(),
            outgoing: Outgoing::default(),
            contest: Contest::default(),
            limit: Limit::new(packet_limit),
        }
    }

    /// SSRC and sequence number of a packet, if it is what the port is for.
    pub fn read(&self, packet: &[u8]) -> Option<Source> {
        match (self.component, demux(packet)) {
            (Component::Rtp, Protocol::Rtp) => Source::of_rtp(packet),
            (Component::Rtcp, Protocol::Rtcp) => Source::of_rtcp(packet),
            _ => None,
        }
    }

    /// Send to the party at this address; one of another IP version than the port's own is none.
    pub fn send_to(&mut self, remote: Option<Endpoint>) {
        let fits = remote.filter(|remote| remote.addr.is_ipv6() == self.socket.is_v6());
        if let (Some(remote), None) = (remote, fits) {
            tracing::warn!(
                "{}: port {} cannot send to {remote}: other IP version than its own",
                self.call_id.escape_ascii(),
                self.local.port
            );
        }
        self.remote = fits.map_or(Address::default(), Address::from);
    }

    pub fn has_remote(&self) -> bool {
        self.remote != Address::default()
    }

    /// The party's packets are those of nobody known.
    pub fn forget_source(&mut self) {
        self.source = Address::default();
    }

    /// Count packets of the party, and say how many of them may go on.
    pub fn admit(&mut self, now: Time, packets: usize, totals: &ThreadCounters) -> usize {
        self.last_packet = now;
        self.counters.last_packet.set(now.as_nanos());
        self.counters.received.add(packets as u64);
        totals.received.add(packets as u64);
        let allowed = self.limit.allow(now, packets);
        self.drop(packets - allowed, totals);
        allowed
    }

    /// Count packets that do not go on.
    pub fn drop(&self, packets: usize, totals: &ThreadCounters) {
        if packets > 0 {
            self.counters.dropped.add(packets as u64);
            totals.discarded.add(packets as u64);
        }
    }

    /// Count a packet of an unknown source.
    pub fn ignore(&self, totals: &ThreadCounters) {
        self.counters.ignored.add(1);
        totals.received.add(1);
        totals.discarded.add(1);
    }

    /// Send packets of a batch, which the opposite port received, to the party; how many were taken.
    pub fn send(&self, batch: &Batch, range: Range<usize>) -> usize {
        let (mut at, mut sent) = (range.start, 0);
        while at < range.end {
            // What the kernel refuses is passed over.
            let taken = self.socket.send(batch, at..range.end, &self.remote).unwrap_or(0);
            sent += taken;
            at += taken + usize::from(taken < range.end - at);
        }
        sent
    }
}

/// Bytes that a thread holds back, as its ports see them.
pub fn held_bytes(totals: &ThreadCounters) -> &Counter {
    &totals.held
}
