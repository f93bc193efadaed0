//! Networks that may send commands: an address and a prefix length.

use std::net::IpAddr;
use std::str::FromStr;

/// `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    addr: IpAddr,
    prefix: u32,
}

/// The address at the top of 128 bits, and the number of its bits.
fn bits(addr: IpAddr) -> (u128, u32) {
    match addr {
        IpAddr::V4(addr) => (u128::from(addr.to_bits()) << 96, 32),
        IpAddr::V6(addr) => (addr.to_bits(), 128),
    }
}

impl Network {
    /// Returns whether an address belongs to the network; an IPv4 address in IPv6 form counts as IPv4.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        let differ = bits(self.addr).0 ^ bits(addr).0;
        self.addr.is_ipv4() == addr.is_ipv4() && differ.leading_zeros() >= self.prefix
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not a network, ADDRESS/PREFIX");
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let most = bits(addr).1;
        let prefix = prefix.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if prefix > most {
            return Err(wrong());
        }
        Ok(Self { addr, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let in_network = |network: &str, addr: &str| network.parse::<Network>().unwrap().contains(addr.parse().unwrap());
        for (network, addr, expected) in [
            ("127.0.0.0/8", "127.255.0.1", true),
            ("127.0.0.0/8", "128.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "203.0.113.9", false),
            ("::/0", "fd91::1", true),
            ("fd91::/16", "fd92::1", false),
            ("::1/128", "::1", true),
            ("127.0.0.0/8", "::ffff:127.0.0.1", true),
        ] {
            assert_eq!(in_network(network, addr), expected, "{network} {addr}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "x/8", "::/129"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
