//! The routes and next hops of a switch. Its operator sets them, and the agent reads them.

use crate::error::PlaneError;
use crate::questions::{ALL_TIMEOUT, read_table, whole};
use crate::rows::{self, Row, Value};
use crate::tuple::address;
use bytes::Bytes;
use shunt_bfrt::schema::{Schema, Table};
use shunt_bfrt_client::Session;
use shunt_conference::routes::NextHop;
use shunt_net::octets;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

const TABLES: [&str; 2] = ["Ingress.route", "Ingress.route6"];
const NEXT_HOPS: &str = "Egress.nexthop";
/// The switch's own MAC addresses. A switch without any drops every frame.
const LAYER2: &str = "Ingress.layer2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hop {
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    vlan: Option<u16>,
}

/// The action of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leads {
    To { port: u32, number: u32 },
    Nowhere(String),
}

/// The routes of a switch as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// For IPv4 and IPv6: routes by prefix length, the longest last, and by the prefix with its other bits 0.
    prefixes: [BTreeMap<u32, HashMap<u128, Leads>>; 2],
    default: [Option<Leads>; 2],
    hops: HashMap<u32, Hop>,
}

fn bits(addr: IpAddr) -> u128 {
    octets(addr).iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// Returns the first `length` bits of an address of `size` bits.
fn prefix(value: u128, size: u32, length: u32) -> u128 {
    let rest = size.saturating_sub(length);
    value.checked_shr(rest).unwrap_or(0).checked_shl(rest).unwrap_or(0)
}

impl Routes {
    /// Adds a row of `route` (`v6`: `route6`).
    fn take_route(&mut self, v6: bool, row: &Row) {
        let number = |name: &str| row.number(name).and_then(|value| u32::try_from(value).ok());
        let leads = match (number("port"), number("nexthop"), &row.action) {
            (Some(port), Some(number), _) => Leads::To { port, number },
            (.., action) => Leads::Nowhere(format!(
                "the switch's route there ends in {}",
                action.as_deref().unwrap_or("no action")
            )),
        };
        let version = usize::from(v6);
        match row.key.first() {
            None => self.default[version] = matches!(leads, Leads::To { .. }).then_some(leads),
            Some((_, Value::Prefix(value, length))) => {
                let Some(addr) = address(value) else { return };
                let size = if v6 { 128 } else { 32 };
                let at = prefix(bits(addr), size, *length);
                self.prefixes[version].entry(*length).or_default().insert(at, leads);
            }
            Some(_) => {}
        }
    }

    /// Adds a row of `nexthop`.
    fn take_hop(&mut self, row: &Row) {
        let Some((_, Value::Bytes(key))) = row.key.first() else { return };
        let mac = |name: &str| {
            let found = row.data.iter().find(|(full, _)| full == name)?;
            match &found.1 {
                Value::Bytes(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok(),
                _ => None,
            }
        };
        if let (Some(src_mac), Some(dst_mac), Ok(number)) = (mac("src_mac"), mac("dst_mac"), u32::try_from(shunt_bfrt::values::number(key)))
        {
            let vlan = row.number("vlan").and_then(|vlan| u16::try_from(vlan).ok());
            self.hops.insert(number, Hop { src_mac, dst_mac, vlan });
        }
    }
}

impl shunt_conference::routes::Routes for Routes {
    /// Finds the route with the longest matching prefix.
    fn next_hop(&self, addr: IpAddr) -> Result<NextHop, String> {
        let version = usize::from(addr.is_ipv6());
        let (size, value) = (if addr.is_ipv6() { 128 } else { 32 }, bits(addr));
        let by_length = self.prefixes[version].iter().rev();
        let found = by_length
            .filter_map(|(length, routes)| routes.get(&prefix(value, size, *length)))
            .next();
        match found.or(self.default[version].as_ref()) {
            None => Err(format!("{addr}: the switch has no route there")),
            Some(Leads::Nowhere(reason)) => Err(format!("{addr}: {reason}")),
            Some(Leads::To { port, number }) => match self.hops.get(number) {
                Some(hop) => Ok(NextHop {
                    port: *port,
                    number: *number,
                    src_mac: hop.src_mac,
                    dst_mac: hop.dst_mac,
                    vlan: hop.vlan,
                }),
                None => Err(format!(
                    "{addr}: the switch's route there names next hop {number}, and {NEXT_HOPS} has none of that number"
                )),
            },
        }
    }
}

struct Tables {
    /// IPv4, IPv6.
    routes: [Option<Arc<Table>>; 2],
    hops: Arc<Table>,
}

/// Resolves the tables; `None`: the target has none and uses its kernel's routes.
fn tables(schema: &Schema) -> Option<Tables> {
    let routes = TABLES.map(|name| schema.table(name).cloned());
    let hops = Arc::clone(schema.table(NEXT_HOPS)?);
    routes.iter().any(Option::is_some).then_some(Tables { routes, hops })
}

pub(crate) fn exist(schema: &Schema) -> bool {
    tables(schema).is_some()
}

/// Returns whether the switch has rows of its operator; true for a target that needs none.
pub(crate) async fn is_set_up(session: &Session, schema: &Schema) -> Result<bool, PlaneError> {
    let Some(table) = schema.table(LAYER2) else { return Ok(true) };
    Ok(!read_table(session, table, ALL_TIMEOUT).await?.is_empty())
}

/// Reads the routes with the client for large reads.
pub(crate) async fn read(session: &Session, schema: &Schema) -> Result<Option<Routes>, PlaneError> {
    let Some(Tables { routes, hops }) = tables(schema) else {
        return Ok(None);
    };
    let mut found = Routes::default();
    for (version, table) in routes.iter().enumerate() {
        let Some(table) = table else { continue };
        let take = |part: Vec<Bytes>| {
            for row in part.into_iter().filter_map(|entity| rows::decode_any(table, entity)) {
                found.take_route(version == 1, &row);
            }
        };
        session.read_all(vec![whole(table, false)], ALL_TIMEOUT, take).await?;
    }
    let take = |part: Vec<Bytes>| {
        for row in part.into_iter().filter_map(|entity| rows::decode(&hops, entity)) {
            found.take_hop(&row);
        }
    };
    session.read_all(vec![whole(&hops, false)], ALL_TIMEOUT, take).await?;
    Ok(Some(found))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use shunt_conference::routes::Routes as _;

    fn route(key: Option<(&[u8], u32)>, action: &str, data: &[(&str, u64)]) -> Row {
        let key = key.map(|(value, length)| ("hdr.ipv4.dst_addr".to_owned(), Value::Prefix(Bytes::copy_from_slice(value), length)));
        Row {
            key: key.into_iter().collect(),
            action: Some(action.to_owned()),
            data: data
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Value::Number(*value)))
                .collect(),
        }
    }

    fn hop(number: u8, vlan: Option<u64>) -> Row {
        let mac = |last: u8| Value::Bytes(Bytes::from(vec![2, 0, 0, 0, 0, last]));
        let mut data = vec![("src_mac".to_owned(), mac(1)), ("dst_mac".to_owned(), mac(number))];
        data.extend(vlan.map(|vlan| ("vlan".to_owned(), Value::Number(vlan))));
        Row {
            key: vec![("nexthop".to_owned(), Value::Bytes(Bytes::from(vec![0, number])))],
            action: None,
            data,
        }
    }

    #[test]
    fn the_longest_prefix_says_where_and_what_leads_nowhere_says_why() {
        let mut routes = Routes::default();
        let forward = |port, number| [("port", port), ("nexthop", number)];
        routes.take_route(false, &route(Some((&[10, 0, 0, 0], 8)), "Ingress.forward", &forward(1, 1)));
        routes.take_route(false, &route(Some((&[10, 1, 0, 0], 16)), "Ingress.forward", &forward(2, 2)));
        routes.take_route(false, &route(Some((&[10, 1, 1, 0], 24)), "Ingress.discard", &[]));
        routes.take_route(false, &route(Some((&[10, 2, 0, 0], 16)), "Ingress.forward", &forward(3, 9)));
        [hop(1, None), hop(2, Some(7))].iter().for_each(|row| routes.take_hop(row));
        let ask = |routes: &Routes, addr: &str| routes.next_hop(addr.parse().unwrap());
        let found = ask(&routes, "10.9.9.9").unwrap();
        assert_eq!((found.port, found.number, found.dst_mac[5], found.vlan), (1, 1, 1, None));
        let found = ask(&routes, "10.1.9.9").unwrap();
        assert_eq!((found.port, found.number, found.vlan), (2, 2, Some(7)));
        assert!(ask(&routes, "10.1.1.1").unwrap_err().contains("ends in Ingress.discard"));
        assert!(ask(&routes, "10.2.1.1").unwrap_err().contains("next hop 9"));
        assert!(ask(&routes, "192.0.2.1").unwrap_err().contains("no route"));
        assert!(ask(&routes, "2001:db8::1").unwrap_err().contains("no route"));
        routes.take_route(false, &route(None, "Ingress.forward", &forward(4, 2)));
        assert_eq!(ask(&routes, "192.0.2.1").unwrap().port, 4);
        routes.take_route(false, &route(None, "Ingress.discard", &[]));
        assert!(ask(&routes, "192.0.2.1").unwrap_err().contains("no route"));
        // The prefix of length 0.
        routes.take_route(false, &route(Some((&[0; 4], 0)), "Ingress.forward", &forward(5, 1)));
        assert_eq!(ask(&routes, "192.0.2.1").unwrap().port, 5);
    }
}
