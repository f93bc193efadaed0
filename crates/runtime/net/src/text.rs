//! Endpoints as text in rows and events: `192.0.2.1:5004`, `[2001:db8::1]:5004`.

use crate::Endpoint;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The longest text of an IPv4 endpoint.
const LONGEST: usize = "255.255.255.255:65535".len();

/// Writes without `std::fmt`, which costs three times the instructions: a call has more than a hundred endpoints in its events and rows.
fn write_v4(addr: Ipv4Addr, port: u16, text: &mut [u8; LONGEST]) -> &str {
    let mut digits = itoa::Buffer::new();
    let mut length = 0;
    let mut put = |part: &str| {
        text[length..length + part.len()].copy_from_slice(part.as_bytes());
        length += part.len();
    };
    for (place, octet) in addr.octets().into_iter().enumerate() {
        if place > 0 {
            put(".");
        }
        put(digits.format(octet));
    }
    put(":");
    put(digits.format(port));
    std::str::from_utf8(&text[..length]).unwrap_or_default()
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.addr {
            IpAddr::V4(addr) => serializer.serialize_str(write_v4(addr, self.port, &mut [0; LONGEST])),
            IpAddr::V6(_) => serializer.collect_str(self),
        }
    }
}

impl FromStr for Endpoint {
    type Err = AddrParseError;

    /// An IPv4 address that stands in an IPv6 one becomes one.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        let socket: SocketAddr = text.parse()?;
        Ok(Self::new(socket.ip().to_canonical(), socket.port()))
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Endpoint;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an address with a port")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Endpoint, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_endpoint_has_the_text_that_people_read(octets in any::<[u8; 4]>(), port in any::<u16>()) {
            let mut text = [0; LONGEST];
            prop_assert_eq!(write_v4(octets.into(), port, &mut text), Endpoint::new(Ipv4Addr::from(octets), port).to_string());
        }

        #[test]
        fn text_is_read_back(addr in any::<IpAddr>(), port in any::<u16>()) {
            let endpoint = Endpoint::new(addr.to_canonical(), port);
            let text = serde_json::to_string(&endpoint).unwrap();
            prop_assert_eq!(&text, &format!("\"{endpoint}\""));
            prop_assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_its_text() {
        let error = serde_json::from_str::<Endpoint>("\"192.0.2.1\"").unwrap_err();
        assert!(
            error.to_string().contains("\"192.0.2.1\", expected an address with a port"),
            "{error}"
        );
        assert_eq!(
            serde_json::from_str::<Endpoint>("\"[::ffff:192.0.2.1]:5004\"").unwrap(),
            Endpoint::new(Ipv4Addr::new(192, 0, 2, 1), 5004)
        );
    }
}
