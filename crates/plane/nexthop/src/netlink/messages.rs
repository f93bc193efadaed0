//! Messages of rtnetlink about routes, neighbours and interfaces.

use std::net::IpAddr;

use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, VlanProtocol,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tracing::debug;

use super::routes::Query;
use crate::kernel::{Event, Framing, KernelError, Link, Neighbour, Route};

/// The relay sends only UDP.
const UDP: u8 = 17;

fn family(addr: IpAddr) -> AddressFamily {
    if addr.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn prefix_length(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

// Routes

/// The kernel's answer for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Route(Route),
    /// As `Route`, but the MTU is a cached path MTU.
    Exception(Route),
    /// The destination is an address of this host.
    Local,
    /// Broadcast, multicast, or behind an encapsulation.
    Other,
    /// No route; for IPv4 also if the source is no address of this host.
    Rejected,
}

impl Answer {
    pub(crate) fn route(self) -> Option<Route> {
        match self {
            Self::Route(route) | Self::Exception(route) => (route.ifindex != 0).then_some(route),
            Self::Local | Self::Other | Self::Rejected => None,
        }
    }

    /// The route's MTU in bytes, 0 for none.
    pub(super) fn mtu(self) -> u32 {
        if let Self::Route(route) = self { route.mtu } else { 0 }
    }
}

/// Builds a route request. `vrf`: the device of the VRF in which the packet is sent.
pub(super) fn route_request(query: &Query, vrf: Option<u32>) -> RouteNetlinkMessage {
    let Query { dst, src, selectors, .. } = *query;
    let mut message = RouteMessage::default();
    message.header.tos = selectors.tos;
    message.attributes.push(RouteAttribute::IpProto(UDP));
    if let Some((source, destination)) = selectors.ports {
        message.attributes.push(RouteAttribute::Sport(source));
        message.attributes.push(RouteAttribute::Dport(destination));
    }
    if selectors.mark != 0 {
        message.attributes.push(RouteAttribute::Mark(selectors.mark));
    }
    message.attributes.extend(selectors.uid.map(RouteAttribute::Uid));
    message.attributes.extend(vrf.map(RouteAttribute::Oif));
    message.header.address_family = family(dst);
    message.header.destination_prefix_length = prefix_length(dst);
    message.attributes.push(RouteAttribute::Destination(dst.into()));
    if let Some(src) = src {
        message.header.source_prefix_length = prefix_length(src);
        message.attributes.push(RouteAttribute::Source(src.into()));
    }
    if query.fib_match {
        message.header.flags = RouteFlags::FibMatch;
    }
    RouteNetlinkMessage::GetRoute(message)
}

pub(super) fn read_route(answer: Result<RouteNetlinkMessage, KernelError>, dst: IpAddr) -> Answer {
    match answer {
        Ok(RouteNetlinkMessage::NewRoute(message)) => route(&message, dst),
        Err(KernelError::Rejected { .. }) => Answer::Rejected,
        Err(error) => {
            debug!(%error, %dst, "a route cannot be read; it is ignored");
            Answer::Other
        }
        Ok(_) => Answer::Other,
    }
}

fn route(message: &RouteMessage, dst: IpAddr) -> Answer {
    match message.header.kind {
        RouteType::Unicast => {}
        RouteType::Local => return Answer::Local,
        _ => return Answer::Other,
    }
    let (mut ifindex, mut gateway, mut mtu, mut expires) = (None, dst, 0, false);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(addr)) | RouteAttribute::Via(RouteVia::Inet(addr)) => gateway = (*addr).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(addr)) | RouteAttribute::Via(RouteVia::Inet6(addr)) => gateway = (*addr).into(),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics
                    .iter()
                    .find_map(|metric| if let RouteMetric::Mtu(mtu) = metric { Some(*mtu) } else { None })
                    .unwrap_or(0);
            }
            RouteAttribute::CacheInfo(info) => expires = info.expires != 0,
            // The kernel adds a header to the packet, which the XDP programs do not.
            RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) | RouteAttribute::NewDestination(_) => return Answer::Other,
            _ => {}
        }
    }
    // The answer to `fib_match` has no interface if the route has several next hops.
    let route = Route {
        ifindex: ifindex.unwrap_or(0),
        gateway,
        mtu,
    };
    // Routes that an IPv6 router announced expire too, but are not cloned.
    if expires && mtu != 0 && message.header.flags.contains(RouteFlags::Cloned) {
        Answer::Exception(route)
    } else {
        Answer::Route(route)
    }
}

// Neighbours

/// Builds a message about one neighbour.
pub(super) fn neighbour(ifindex: u32, addr: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(addr);
    message.header.ifindex = ifindex;
    message.attributes.push(NeighbourAttribute::Destination(match addr {
        IpAddr::V4(addr) => NeighbourAddress::Inet(addr),
        IpAddr::V6(addr) => NeighbourAddress::Inet6(addr),
    }));
    message
}

/// Reads a neighbour; `None` for entries outside the neighbour tables of IP: bridge ports and proxied addresses.
pub(super) fn read_neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), Neighbour)> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let permanent = matches!(message.header.state, NeighbourState::Permanent | NeighbourState::Noarp);
    let (mut at, mut found) = (
        None,
        Neighbour {
            mac: None,
            permanent,
            managed: false,
        },
    );
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(addr)) => at = Some((message.header.ifindex, (*addr).into())),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(addr)) => at = Some((message.header.ifindex, (*addr).into())),
            NeighbourAttribute::LinkLayerAddress(mac) if is_valid(message.header.state) => found.mac = mac.as_slice().try_into().ok(),
            NeighbourAttribute::ExtFlags(flags) => found.managed = flags.contains(NeighbourExtFlags::Managed),
            _ => {}
        }
    }
    at.map(|at| (at, found))
}

/// Returns whether an address may be used in this state (`NUD_VALID`).
fn is_valid(state: NeighbourState) -> bool {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    matches!(state, Permanent | Noarp | Reachable | Probe | Stale | Delay)
}

// Interfaces

/// Builds a request for all interfaces, without their counters.
pub(super) fn links_request() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    RouteNetlinkMessage::GetLink(message)
}

/// Reads an interface; `None` for a bridge's messages about its ports, and those of wireless drivers.
pub(super) fn read_link(message: LinkMessage) -> Option<Link> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let (mut mtu, mut parent, mut tag, mut is_here) = (None, None, None, true);
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        framing: if message.header.link_layer_type == LinkLayerType::Ether {
            Framing::Ethernet
        } else {
            Framing::Other
        },
        kind: String::new(),
        controller: None,
        rx_queues: 1,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac.as_slice().try_into().ok(),
            LinkAttribute::Mtu(value) => mtu = Some(value),
            LinkAttribute::Link(index) => parent = Some(index),
            LinkAttribute::LinkNetNsId(_) => is_here = false,
            LinkAttribute::Controller(index) => link.controller = (index != 0).then_some(index),
            LinkAttribute::NumRxQueues(count) => link.rx_queues = count,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Vlan(vlan)) => tag = vlan_tag(&vlan),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // The interface below may be in another namespace. For other kinds the attribute may name a peer.
    link.framing = match (link.kind.as_str(), parent.filter(|_| is_here)) {
        ("vlan", Some(parent)) => tag.map_or(Framing::Other, |tag| Framing::Vlan { tag, parent }),
        ("vlan", None) => Framing::Other,
        ("macvlan" | "macvtap", Some(parent)) => Framing::Macvlan { parent },
        _ => link.framing,
    };
    Some(Link { mtu: mtu?, ..link })
}

/// Returns the tag of an 802.1Q sub-interface; `None` for 802.1ad.
fn vlan_tag(vlan: &[InfoVlan]) -> Option<u16> {
    let mut tag = None;
    for info in vlan {
        match info {
            InfoVlan::Id(id) => tag = Some(*id),
            InfoVlan::Protocol(protocol) if *protocol != VlanProtocol::Ieee8021Q => return None,
            _ => {}
        }
    }
    tag
}

// Events

/// Reads an event about an interface or neighbour; `None` for other events.
pub(super) fn read_event(message: NetlinkBuffer<&[u8]>) -> Option<Event> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message.into_inner()).map(|message| message.payload) {
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message))) => read_link(message).map(Event::Link),
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message))) => {
            // A bridge also sends this message about a port that leaves it.
            (message.header.interface_family == AddressFamily::Unspec).then_some(Event::LinkGone(message.header.index))
        }
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message))) => {
            read_neighbour(&message).map(|((ifindex, addr), neighbour)| Event::Neighbour { ifindex, addr, neighbour })
        }
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message))) => {
            read_neighbour(&message).map(|((ifindex, addr), _)| Event::NeighbourGone { ifindex, addr })
        }
        Ok(_) => None,
        Err(error) => {
            debug!(%error, "an event cannot be read; it is ignored");
            None
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::link::{InfoKind, State};
    use netlink_packet_route::route::{RouteLwEnCapType, RouteLwTunnelEncap};
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::channel::split;
    use nix::libc;

    /// Returns the bytes of a message, as the kernel would send them.
    fn bytes(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut data = vec![0; message.buffer_len()];
        message.serialize(&mut data);
        data
    }

    fn events(data: &[u8]) -> Vec<Option<Event>> {
        split(data).map(read_event).collect()
    }

    fn link(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.flags = LinkFlags::Up;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = vec![
            LinkAttribute::IfName("eth0.300".into()),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::Mtu(1500),
            LinkAttribute::Link(3),
            LinkAttribute::NumRxQueues(4),
        ];
        message.attributes.extend(attributes);
        message
    }

    fn vlan(protocol: VlanProtocol) -> LinkAttribute {
        let data = InfoData::Vlan(vec![InfoVlan::Protocol(protocol), InfoVlan::Id(300)]);
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(data)])
    }

    #[test]
    fn vlan_interfaces() {
        let expected = Link {
            ifindex: 7,
            name: "eth0.300".into(),
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            up: true,
            framing: Framing::Vlan { tag: 300, parent: 3 },
            kind: "vlan".into(),
            controller: None,
            rx_queues: 4,
        };
        let q = bytes(RouteNetlinkMessage::NewLink(link(vec![vlan(VlanProtocol::Ieee8021Q)])));
        let ad = bytes(RouteNetlinkMessage::NewLink(link(vec![vlan(VlanProtocol::Ieee8021Ad)])));
        let found = events(&[q, ad].concat());
        assert_eq!(
            found,
            [
                Some(Event::Link(expected.clone())),
                Some(Event::Link(Link {
                    framing: Framing::Other,
                    ..expected
                }))
            ]
        );
    }

    #[test]
    fn messages_that_do_not_describe_an_interface() {
        let mut port = link(vec![]);
        port.header.interface_family = AddressFamily::Bridge;
        let mut wireless = link(vec![]);
        wireless.attributes = vec![LinkAttribute::IfName("wlan0".into()), LinkAttribute::OperState(State::Up)];
        for message in [
            RouteNetlinkMessage::NewLink(port.clone()),
            RouteNetlinkMessage::DelLink(port),
            RouteNetlinkMessage::NewLink(wireless),
        ] {
            assert_eq!(events(&bytes(message)), [None]);
        }
        assert_eq!(
            events(&bytes(RouteNetlinkMessage::DelLink(link(vec![])))),
            [Some(Event::LinkGone(7))]
        );
    }

    #[test]
    fn neighbours() {
        let addr: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        let mut message = neighbour(3, addr);
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]));
        let valid = [
            NeighbourState::Reachable,
            NeighbourState::Stale,
            NeighbourState::Delay,
            NeighbourState::Probe,
        ];
        let set = [NeighbourState::Permanent, NeighbourState::Noarp];
        let invalid = [NeighbourState::None, NeighbourState::Incomplete, NeighbourState::Failed];
        for state in valid.into_iter().chain(set).chain(invalid) {
            message.header.state = state;
            let mac = (!invalid.contains(&state)).then_some([2, 0, 0, 0, 0, 9]);
            let expected = Neighbour {
                mac,
                permanent: set.contains(&state),
                managed: false,
            };
            let found = events(&bytes(RouteNetlinkMessage::NewNeighbour(message.clone())));
            assert_eq!(
                found,
                [Some(Event::Neighbour {
                    ifindex: 3,
                    addr,
                    neighbour: expected
                })],
                "{state}"
            );
        }
        message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
        assert!(read_neighbour(&message).unwrap().1.managed);
        assert_eq!(
            events(&bytes(RouteNetlinkMessage::DelNeighbour(message.clone()))),
            [Some(Event::NeighbourGone { ifindex: 3, addr })]
        );
        message.header.flags = NeighbourFlags::Proxy;
        assert_eq!(events(&bytes(RouteNetlinkMessage::NewNeighbour(message))), [None]);
    }

    #[test]
    fn routes() {
        let dst: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let gateway: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        let read = |kind, attributes: Vec<RouteAttribute>| {
            let mut message = RouteMessage::default();
            message.header.address_family = AddressFamily::Inet;
            message.header.kind = kind;
            message.attributes = attributes;
            read_route(Ok(RouteNetlinkMessage::NewRoute(message)), dst)
        };
        let by = |gateway| {
            Answer::Route(Route {
                ifindex: 3,
                gateway,
                mtu: 0,
            })
        };
        let out = RouteAttribute::Oif(3);
        assert_eq!(read(RouteType::Unicast, vec![out.clone()]), by(dst));
        assert_eq!(
            read(RouteType::Unicast, vec![out.clone(), RouteAttribute::Gateway(gateway.into())]),
            by(gateway)
        );
        let metrics = RouteAttribute::Metrics(vec![RouteMetric::Hoplimit(3), RouteMetric::Mtu(1400)]);
        assert_eq!(
            read(RouteType::Unicast, vec![out.clone(), metrics]),
            Answer::Route(Route {
                ifindex: 3,
                gateway: dst,
                mtu: 1400
            })
        );
        assert_eq!(read(RouteType::Unicast, vec![]).route(), None);
        assert_eq!(read(RouteType::Local, vec![out.clone()]), Answer::Local);
        assert_eq!(read(RouteType::Multicast, vec![out.clone()]), Answer::Other);
        for around in [
            RouteAttribute::EncapType(RouteLwEnCapType::Mpls),
            RouteAttribute::Encap(Vec::<RouteLwTunnelEncap>::new()),
        ] {
            assert_eq!(read(RouteType::Unicast, vec![out.clone(), around]), Answer::Other);
        }
    }

    proptest! {
        /// Reading arbitrary bytes terminates without a panic.
        #[test]
        fn any_bytes(
            kind in prop_oneof![Just(libc::RTM_NEWLINK), Just(libc::RTM_DELLINK), Just(libc::RTM_NEWNEIGH), Just(libc::RTM_DELNEIGH), any::<u16>()],
            body in proptest::collection::vec(any::<u8>(), 0..200),
            length in proptest::option::of(any::<u32>()),
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let length = length.unwrap_or(16 + u32::try_from(body.len()).unwrap());
            let mut data = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &body].concat();
            data.extend(rest);
            prop_assert!(events(&data).len() <= data.len() / 16);
        }

        /// The same for valid messages with some bytes changed.
        #[test]
        fn damaged_messages(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), which in 0usize..2) {
            let mut message = neighbour(3, Ipv4Addr::new(10, 0, 0, 1).into());
            message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]));
            let link = RouteNetlinkMessage::NewLink(link(vec![vlan(VlanProtocol::Ieee8021Q)]));
            let mut data = bytes(if which == 0 { link } else { RouteNetlinkMessage::NewNeighbour(message) });
            for (place, byte) in changes {
                let place = place.index(data.len());
                data[place] = byte;
            }
            events(&data);
        }
    }
}
