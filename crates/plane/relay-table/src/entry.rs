//! A relay entry, and the map records that hold it.

use crate::checksum::{Header, changes, of_checksums};
use shunt_abi::relay::{detail, entry_flag, flow_key, overflow_entry, slot, wide};
use shunt_net::{Endpoint, FiveTuple, octets};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const DSCP: u8 = entry_flag::ENTRY_DSCP.0 as u8;
const KEY6: u8 = entry_flag::ENTRY_KEY6.0 as u8;
const OUT6: u8 = entry_flag::ENTRY_OUT6.0 as u8;
/// Its packets are copied to the ring `captures`. No part of an entry: it follows the port.
pub const CAPTURED: u8 = entry_flag::ENTRY_CAPTURED.0 as u8;

/// Packets that match `key` leave from `src` to `dst`, which may have the other IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayEntry {
    pub key: FiveTuple,
    pub src: Endpoint,
    pub dst: Endpoint,
    /// Milliseconds without a packet after which the entry is idle; 0: never.
    pub ttl_ms: u32,
    /// New value of the DSCP field, 0 to 63.
    pub dscp: Option<u8>,
}

/// The reason why an entry was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("there is an entry with this key")]
    Exists,
    #[error("there is no entry with this key")]
    Absent,
    #[error("there is no room")]
    Full,
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0}")]
    Kernel(String),
}

impl From<shunt_xdp::Error> for Fault {
    fn from(error: shunt_xdp::Error) -> Self {
        Self::Kernel(error.to_string())
    }
}

/// Returns a port in network byte order.
pub fn port(value: u16) -> u16 {
    u16::from_ne_bytes(value.to_be_bytes())
}

/// Returns an IPv4 address in network byte order; 0 for IPv6.
pub fn word(addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(addr) => u32::from_ne_bytes(addr.octets()),
        IpAddr::V6(_) => 0,
    }
}

/// Returns an address as the four words of a key; an IPv4 address is in the first.
pub fn words(addr: IpAddr) -> [u32; 4] {
    let bytes = *octets(addr).padded();
    std::array::from_fn(|n| u32::from_ne_bytes([bytes[n * 4], bytes[n * 4 + 1], bytes[n * 4 + 2], bytes[n * 4 + 3]]))
}

/// Returns the address in four words.
pub fn address(words: [u32; 4], v6: bool) -> IpAddr {
    if v6 {
        let mut bytes = [0; 16];
        for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        Ipv6Addr::from(bytes).into()
    } else {
        v4(words[0]).into()
    }
}

fn v4(word: u32) -> Ipv4Addr {
    Ipv4Addr::from(word.to_ne_bytes())
}

/// Returns the key of the overflow table and of learn notices.
pub fn flow_key_of(key: &FiveTuple) -> flow_key {
    flow_key {
        saddr: words(key.src.addr),
        daddr: words(key.dst.addr),
        sport: port(key.src.port),
        dport: port(key.dst.port),
        version: if key.is_v6() { 6 } else { 4 },
    }
}

/// Returns the 5-tuple of a key.
pub fn flow_of(key: &flow_key) -> FiveTuple {
    let v6 = key.version == 6;
    FiveTuple::new(
        Endpoint::new(address(key.saddr, v6), port(key.sport)),
        Endpoint::new(address(key.daddr, v6), port(key.dport)),
    )
}

impl RelayEntry {
    /// Checks whether the entry can be stored.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn check(&self) -> Result<(), Fault> {
        if self.key.src.addr.is_ipv6() != self.key.dst.addr.is_ipv6() {
            return Err(Fault::Invalid("the key's addresses are not both IPv4 or both IPv6"));
        }
        if self.src.addr.is_ipv6() != self.dst.addr.is_ipv6() {
            return Err(Fault::Invalid(
                "source and destination of the action are not both IPv4 or both IPv6",
            ));
        }
        if self.dscp.is_some_and(|dscp| dscp > 63) {
            return Err(Fault::Invalid("the DSCP is not in 0..63"));
        }
        Ok(())
    }

    /// Returns the slot of this entry, with counters at zero. `nexthop`: its row; `now`: the kernel's tick.
    pub fn slot(&self, nexthop: u16, now: u32) -> slot {
        let mut flags = 0;
        if self.key.is_v6() {
            flags |= KEY6;
        }
        if self.dst.addr.is_ipv6() {
            flags |= OUT6;
        }
        if self.dscp.is_some() {
            flags |= DSCP;
        }
        let (ip_change, udp_change) = self.changes();
        slot {
            nexthop,
            flags,
            dscp: self.dscp.unwrap_or(0) << 2,
            saddr: word(self.key.src.addr),
            daddr: word(self.key.dst.addr),
            out_saddr: word(self.src.addr),
            out_daddr: word(self.dst.addr),
            sport: port(self.key.src.port),
            dport: port(self.key.dst.port),
            out_sport: port(self.src.port),
            out_dport: port(self.dst.port),
            ip_change,
            udp_change,
            last_jiffies: now,
            ..slot::default()
        }
    }

    fn changes(&self) -> (u16, u16) {
        let (IpAddr::V4(saddr), IpAddr::V4(daddr), IpAddr::V4(out_saddr), IpAddr::V4(out_daddr)) =
            (self.key.src.addr, self.key.dst.addr, self.src.addr, self.dst.addr)
        else {
            return (0, 0);
        };
        let before = Header {
            src: (saddr, self.key.src.port),
            dst: (daddr, self.key.dst.port),
        };
        let after = Header {
            src: (out_saddr, self.src.port),
            dst: (out_daddr, self.dst.port),
        };
        let (ip, udp) = of_checksums(changes(&before, &after));
        (port(ip), port(udp))
    }

    /// Returns the IPv6 addresses of this entry, if it has any.
    pub fn wide(&self) -> Option<wide> {
        (self.key.is_v6() || self.dst.addr.is_ipv6()).then(|| wide {
            saddr: words(self.key.src.addr),
            daddr: words(self.key.dst.addr),
            out_saddr: words(self.src.addr),
            out_daddr: words(self.dst.addr),
        })
    }

    /// Returns the record of the overflow table.
    pub fn overflow(&self, nexthop: u16, now: u32) -> overflow_entry {
        overflow_entry {
            slot: slot {
                generation: 1,
                ..self.slot(nexthop, now)
            },
            detail: detail {
                ttl_ms: self.ttl_ms,
                ..detail::default()
            },
            wide: self.wide().unwrap_or_default(),
        }
    }

    /// Returns the entry of a slot.
    pub fn read(slot: &slot, wide: &wide, ttl_ms: u32) -> Self {
        let (key6, out6) = (slot.flags & KEY6 != 0, slot.flags & OUT6 != 0);
        let pick = |v6: bool, long: [u32; 4], short: u32| if v6 { address(long, true) } else { v4(short).into() };
        Self {
            key: FiveTuple::new(
                Endpoint::new(pick(key6, wide.saddr, slot.saddr), port(slot.sport)),
                Endpoint::new(pick(key6, wide.daddr, slot.daddr), port(slot.dport)),
            ),
            src: Endpoint::new(pick(out6, wide.out_saddr, slot.out_saddr), port(slot.out_sport)),
            dst: Endpoint::new(pick(out6, wide.out_daddr, slot.out_daddr), port(slot.out_dport)),
            ttl_ms,
            dscp: (slot.flags & DSCP != 0).then_some(slot.dscp >> 2),
        }
    }
}

/// Returns whether a slot's wide part must be read.
pub fn is_wide(slot: &slot) -> bool {
    slot.flags & (KEY6 | OUT6) != 0
}

/// Returns whether a slot's key is IPv6.
pub fn is_key6(slot: &slot) -> bool {
    slot.flags & KEY6 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(v6: bool) -> impl Strategy<Value = Endpoint> {
        (any::<[u8; 16]>(), any::<u16>()).prop_map(move |(bytes, port)| {
            let addr: IpAddr = if v6 {
                Ipv6Addr::from(bytes).into()
            } else {
                Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
            };
            Endpoint::new(addr, port)
        })
    }

    fn entry() -> impl Strategy<Value = RelayEntry> {
        (any::<bool>(), any::<bool>(), any::<u32>(), proptest::option::of(0u8..64)).prop_flat_map(|(key6, out6, ttl_ms, dscp)| {
            (endpoint(key6), endpoint(key6), endpoint(out6), endpoint(out6)).prop_map(move |(a, b, src, dst)| RelayEntry {
                key: FiveTuple::new(a, b),
                src,
                dst,
                ttl_ms,
                dscp,
            })
        })
    }

    proptest! {
        #[test]
        fn an_entry_reads_back_from_its_records(made in entry()) {
            prop_assert!(made.check().is_ok());
            let record = made.overflow(7, 9);
            prop_assert_eq!(RelayEntry::read(&record.slot, &record.wide, record.detail.ttl_ms), made);
            prop_assert_eq!(flow_of(&flow_key_of(&made.key)), made.key);
        }
    }
}
