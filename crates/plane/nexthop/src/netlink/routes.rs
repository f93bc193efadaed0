//! Route lookups for packets of the relay.

use std::collections::HashMap;
use std::net::IpAddr;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::channel::Channel;
use super::messages::{self, Answer};
use crate::kernel::KernelError;

/// Route requests in one system call; their answers must fit into the socket's buffer.
const ROUTES_AT_ONCE: usize = 128;

/// The selectors of a routing rule, besides addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selectors {
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    pub mark: u32,
    pub uid: Option<u32>,
    pub tos: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub dst: IpAddr,
    pub src: Option<IpAddr>,
    pub fib_match: bool,
    pub selectors: Selectors,
}

/// The VRF of an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Vrf(u32),
    /// In several VRFs, or in a VRF and outside: its packets cannot be told apart.
    Several,
}

/// A socket for route lookups. The lookups for a source in a VRF use that VRF, where the relay's socket is.
pub(crate) struct Routes {
    channel: Channel,
    /// VRFs of addresses; `None` if unknown.
    homes: Option<HashMap<IpAddr, Home>>,
}

impl Routes {
    pub(crate) fn open() -> Result<Self, KernelError> {
        Ok(Self {
            channel: Channel::open(NETLINK_ROUTE)?,
            homes: None,
        })
    }

    /// Discards the VRFs of addresses, because interfaces or addresses have changed.
    pub(crate) fn forget(&mut self) {
        self.homes = None;
    }

    /// Looks up routes, many in one system call.
    pub(crate) fn ask(&mut self, wanted: &[Query]) -> Result<Vec<Answer>, KernelError> {
        let homes = match self.homes.take() {
            Some(homes) => homes,
            None => read_homes(&mut self.channel)?,
        };
        let home = |query: &Query| homes.get(&query.src?).copied();
        let mut answers = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(ROUTES_AT_ONCE) {
            let requests = part.iter().map(|query| {
                let vrf = home(query).and_then(|home| if let Home::Vrf(ifindex) = home { Some(ifindex) } else { None });
                messages::route_request(query, vrf)
            });
            let received = self.channel.ask_many(requests)?;
            answers.extend(received.into_iter().zip(part).map(|(answer, query)| match home(query) {
                Some(Home::Several) => Answer::Other,
                _ => messages::read_route(answer, query.dst),
            }));
        }
        self.homes = Some(homes);
        Ok(answers)
    }
}

fn read_homes(channel: &mut Channel) -> Result<HashMap<IpAddr, Home>, KernelError> {
    let mut vrfs = Vec::new();
    let mut masters = HashMap::new();
    channel.ask(messages::links_request(), NLM_F_DUMP, |message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::Controller(master) => drop(masters.insert(link.header.index, master)),
                    LinkAttribute::LinkInfo(infos) if infos.contains(&LinkInfo::Kind(InfoKind::Vrf)) => vrfs.push(link.header.index),
                    _ => {}
                }
            }
        }
    })?;
    if vrfs.is_empty() {
        return Ok(HashMap::new());
    }
    let mut addresses = Vec::new();
    channel.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP, |message| {
        if let RouteNetlinkMessage::NewAddress(address) = message {
            for attribute in address.attributes {
                if let AddressAttribute::Local(addr) | AddressAttribute::Address(addr) = attribute {
                    addresses.push((addr, address.header.index));
                }
            }
        }
    })?;
    Ok(homes(&vrfs, &masters, &addresses))
}

/// Returns the VRF of each address. `masters`: the master of each interface. A bridge or bond may be between an interface and its VRF.
fn homes(vrfs: &[u32], masters: &HashMap<u32, u32>, addresses: &[(IpAddr, u32)]) -> HashMap<IpAddr, Home> {
    const LEVELS: usize = 8;
    let vrf_of = |ifindex: u32| {
        let mut up = std::iter::successors(Some(ifindex), |index| masters.get(index).copied()).take(LEVELS);
        up.find(|index| vrfs.contains(index))
    };
    let mut found: HashMap<IpAddr, Option<u32>> = HashMap::new();
    let mut several = Vec::new();
    for &(addr, ifindex) in addresses {
        let vrf = vrf_of(ifindex);
        if *found.entry(addr).or_insert(vrf) != vrf {
            several.push(addr);
        }
    }
    let in_vrf = found.into_iter().filter_map(|(addr, vrf)| Some((addr, Home::Vrf(vrf?))));
    in_vrf.chain(several.iter().map(|addr| (*addr, Home::Several))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_looked_up_in_the_vrf_of_its_interface() {
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        // 10 and 11 are VRFs; 2 is a port of bridge 3, which is in VRF 10.
        let masters = HashMap::from([(2, 3), (3, 10), (4, 11)]);
        let found = homes(
            &[10, 11],
            &masters,
            &[
                (ip(1), 2),
                (ip(2), 4),
                (ip(3), 5),
                (ip(4), 3),
                (ip(4), 4),
                (ip(5), 5),
                (ip(5), 4),
                (ip(6), 10),
            ],
        );
        assert_eq!(found.get(&ip(1)), Some(&Home::Vrf(10)));
        assert_eq!(found.get(&ip(2)), Some(&Home::Vrf(11)));
        assert_eq!(found.get(&ip(3)), None);
        assert_eq!(found.get(&ip(4)), Some(&Home::Several));
        assert_eq!(found.get(&ip(5)), Some(&Home::Several));
        assert_eq!(found.get(&ip(6)), Some(&Home::Vrf(10)));
    }
}
