//! The change of an IPv4 packet's checksum sums by a rewrite (RFC 1624), from two halves that are computed once each.

use shunt_net::Endpoint;
use std::net::IpAddr;

/// Sums of 16-bit words in ones' complement arithmetic are remainders modulo this.
const MODULUS: u32 = 65535;

/// The sums over addresses, and over addresses and ports, of a packet before or after the rewrite; both below 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    addresses: u32,
    all: u32,
}

impl Sums {
    /// Returns `None` unless both addresses are IPv4.
    #[must_use]
    pub fn of(src: &Endpoint, dst: &Endpoint) -> Option<Self> {
        let (IpAddr::V4(saddr), IpAddr::V4(daddr)) = (src.addr, dst.addr) else {
            return None;
        };
        let words = |addr: std::net::Ipv4Addr| (u32::from(addr) >> 16) + (u32::from(addr) & 0xffff);
        let addresses = (words(saddr) + words(daddr)) % MODULUS;
        Some(Self {
            addresses,
            all: (addresses + u32::from(src.port) + u32::from(dst.port)) % MODULUS,
        })
    }

    /// Returns the change by a rewrite to `after`: of the IP header's sum, without the word of the TTL, and of the UDP datagram's sum.
    #[must_use]
    pub fn changes_to(&self, after: &Self) -> (u16, u16) {
        let ip = (after.addresses + MODULUS - self.addresses) % MODULUS;
        let udp = (after.all + MODULUS - self.all) % MODULUS;
        (ip as u16, udp as u16)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ones_sum(words: &[u16]) -> u16 {
        let mut sum: u64 = words.iter().map(|word| u64::from(*word)).sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn words(ends: &[Endpoint; 2]) -> Vec<u16> {
        ends.iter()
            .filter_map(|end| match end.addr {
                IpAddr::V4(addr) => Some(u32::from(addr)),
                IpAddr::V6(_) => None,
            })
            .flat_map(|word| [(word >> 16) as u16, word as u16])
            .collect()
    }

    fn ends() -> impl Strategy<Value = [Endpoint; 2]> {
        (any::<[u8; 4]>(), any::<u16>(), any::<[u8; 4]>(), any::<u16>())
            .prop_map(|(src, sport, dst, dport)| [Endpoint::new(src, sport), Endpoint::new(dst, dport)])
    }

    proptest! {
        #[test]
        fn sums_are_those_computed_anew(before in ends(), after in ends(), rest in any::<[u16; 4]>(), ttl in any::<u8>()) {
            let header = |ends: &[Endpoint; 2], ttl: u8| {
                let mut all = words(ends);
                all.push(u16::from(ttl) << 8 | 17);
                all.extend(rest);
                ones_sum(&all)
            };
            let datagram = |ends: &[Endpoint; 2]| {
                let mut all = words(ends);
                all.extend([ends[0].port, ends[1].port]);
                all.extend(rest);
                ones_sum(&all)
            };
            let sums = |ends: &[Endpoint; 2]| Sums::of(&ends[0], &ends[1]).unwrap();
            let (ip, udp) = sums(&before).changes_to(&sums(&after));
            // The result may be either zero, 0 or 0xffff: the program treats both alike.
            prop_assert_eq!(ones_sum(&[header(&before, ttl), ip]) % 0xffff, header(&after, ttl) % 0xffff);
            prop_assert_eq!(ones_sum(&[datagram(&before), udp]) % 0xffff, datagram(&after) % 0xffff);
        }
    }

    #[test]
    fn packets_of_ipv6_have_no_sums() {
        let (four, six) = (Endpoint::new([10, 0, 0, 1], 1), Endpoint::new([0u16; 8], 1));
        assert!(Sums::of(&four, &six).is_none() && Sums::of(&six, &six).is_none());
    }
}
