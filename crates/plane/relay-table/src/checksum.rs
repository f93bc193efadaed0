//! The change of an IPv4 packet's checksums by a rewrite (RFC 1624).

use std::net::Ipv4Addr;

/// Addresses and ports before or after a rewrite.
#[derive(Debug)]
pub struct Header {
    pub src: (Ipv4Addr, u16),
    pub dst: (Ipv4Addr, u16),
}

impl Header {
    fn addresses(&self) -> u64 {
        u64::from(u32::from(self.src.0)) + u64::from(u32::from(self.dst.0))
    }

    fn ports(&self) -> u64 {
        u64::from(self.src.1) + u64::from(self.dst.1)
    }
}

const MODULUS: u64 = 65535;
/// A multiple of the modulus that keeps differences positive.
const LIFT: u64 = MODULUS << 20;

/// Returns the change of the IP header's sum and of the UDP datagram's sum. Sums of 16-bit words in ones' complement arithmetic are
/// remainders modulo 65535. The word with the TTL is excluded: the programs know its old and new value.
pub fn changes(before: &Header, after: &Header) -> (u64, u64) {
    let addresses = LIFT + after.addresses() - before.addresses();
    let ip = addresses % MODULUS;
    let udp = (addresses + after.ports() + MODULUS * 2 - before.ports()) % MODULUS;
    (ip, udp)
}

/// Returns the change of the checksums, which are complements of sums: the IP header's from 0 to 65534, the UDP datagram's (where 0 means
/// no checksum) from 1 to 65535.
pub fn of_checksums((ip, udp): (u64, u64)) -> (u16, u16) {
    let ip = (MODULUS - ip) % MODULUS;
    (ip as u16, (MODULUS - udp) as u16)
}

#[cfg(test)]
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

    fn words(header: &Header) -> Vec<u16> {
        [u32::from(header.src.0), u32::from(header.dst.0)]
            .iter()
            .flat_map(|word| [(word >> 16) as u16, *word as u16])
            .collect()
    }

    fn header() -> impl Strategy<Value = Header> {
        (any::<u32>(), any::<u16>(), any::<u32>(), any::<u16>()).prop_map(|(src, sport, dst, dport)| Header {
            src: (src.into(), sport),
            dst: (dst.into(), dport),
        })
    }

    proptest! {
        #[test]
        fn incremental_checksums_are_those_computed_anew(before in header(), after in header(), rest in any::<[u16; 4]>(), ttl in 2u8.., fresh in 1u8..) {
            let at = |header: &Header, ttl: u8| {
                let mut all = words(header);
                all.push(u16::from(ttl) << 8 | 17);
                all.extend(rest);
                !ones_sum(&all)
            };
            let udp_at = |header: &Header| {
                let mut all = words(header);
                all.extend([header.src.1, header.dst.1]);
                all.extend(rest);
                match !ones_sum(&all) { 0 => 0xffff, check => check }
            };
            let (ip, udp) = of_checksums(changes(&before, &after));
            // As the program does: add, bring the carry round, and keep 0xffff (0) out of the range.
            let (old, new) = (u32::from(ttl) << 8 | 17, u32::from(fresh) << 8 | 17);
            let sum = u32::from(at(&before, ttl)) + u32::from(ip) + old + (!new & 0xffff);
            let sum = (sum & 0xffff) + (sum >> 16);
            let mut sum = (sum + ((sum + 1) >> 16)) as u16;
            if sum == 0xffff { sum = 0; }
            prop_assert_eq!(sum, at(&after, fresh) % 0xffff);
            let sum = u32::from(udp_at(&before)) + u32::from(udp);
            let folded = (sum + (sum >> 16)) as u16;
            prop_assert_eq!(folded, udp_at(&after));
        }
    }
}
