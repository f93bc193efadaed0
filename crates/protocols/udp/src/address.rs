//! Socket addresses in the kernel's own form.

use shunt_net::Endpoint;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// `sizeof(struct sockaddr_in6)`, the larger of the two.
const LARGEST: usize = size_of::<libc::sockaddr_in6>();
const V4: usize = size_of::<libc::sockaddr_in>();

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct Address {
    pub(crate) bytes: [u8; LARGEST],
    pub(crate) length: u32,
}

impl Default for Address {
    /// No address.
    fn default() -> Self {
        Self {
            bytes: [0; LARGEST],
            length: 0,
        }
    }
}

impl From<Endpoint> for Address {
    fn from(endpoint: Endpoint) -> Self {
        let mut address = Self::default();
        let (family, length) = match endpoint.addr {
            std::net::IpAddr::V4(addr) => {
                address.bytes[4..8].copy_from_slice(&addr.octets());
                (libc::AF_INET, V4)
            }
            std::net::IpAddr::V6(addr) => {
                address.bytes[8..24].copy_from_slice(&addr.octets());
                (libc::AF_INET6, LARGEST)
            }
        };
        // AF_INET and AF_INET6 are small, and so are the two lengths.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        {
            address.bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            address.length = length as u32;
        }
        address.bytes[2..4].copy_from_slice(&endpoint.port.to_be_bytes());
        address
    }
}

impl Address {
    /// `None` for what is neither IPv4 nor IPv6.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        let family = i32::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]));
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        let length = self.length as usize;
        if family == libc::AF_INET && length >= V4 {
            let octets = <[u8; 4]>::try_from(&self.bytes[4..8]).ok()?;
            return Some(Endpoint::new(Ipv4Addr::from(octets), port));
        }
        if family == libc::AF_INET6 && length >= LARGEST {
            let octets = <[u8; 16]>::try_from(&self.bytes[8..24]).ok()?;
            return Some(Endpoint::new(Ipv6Addr::from(octets), port));
        }
        None
    }

    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.length as usize == LARGEST
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint() {
            Some(endpoint) => write!(f, "{endpoint}"),
            None => f.write_str("no address"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_back() {
        for endpoint in [Endpoint::new([192, 0, 2, 1], 5060), Endpoint::new(Ipv6Addr::LOCALHOST, 65535)] {
            let address = Address::from(endpoint);
            assert_eq!((address.endpoint(), address.is_v6()), (Some(endpoint), endpoint.addr.is_ipv6()));
        }
        assert_eq!(Address::default().endpoint(), None);
    }
}
