//! The kernel over netlink sockets: rtnetlink for routes, neighbours and interfaces, the netdev family for XDP features.

pub(crate) mod channel;
mod features;
pub(crate) mod messages;
pub(crate) mod raw;
pub(crate) mod routes;

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NetlinkBuffer};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use tracing::warn;

use self::channel::{Channel, Received, Subscription};
use self::features::Features;
use self::messages::Answer;
use self::routes::{Query, Routes, Selectors};
use crate::kernel::{Event, Events, Kernel, KernelError, Link, Neighbour, Route};

/// Interfaces, neighbours, nexthop objects, and the addresses, routes and rules of both IP versions.
const GROUPS: [u32; 9] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_NEXTHOP,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV6_RULE,
];
/// Number of attempts at a dump that changes interrupt.
const DUMPS: usize = 5;

/// The origin of the neighbours that the kernel keeps resolved for this program, as `ip neigh` shows it (`proto 83`).
const ORIGIN: u8 = 83;

/// The kernel of the calling thread's network namespace at the time of creation.
///
/// A request takes some microseconds, because the kernel answers before the system call returns. Only a lost answer takes two seconds.
pub struct Netlink {
    requests: Channel,
    routes: Routes,
    events: Subscription,
    features: Features,
    ready: Epoll,
}

impl Netlink {
    /// # Errors
    /// A socket cannot be created. A kernel without the netdev family (before Linux 6.3) is no error.
    pub fn new() -> Result<Self, KernelError> {
        let events = Subscription::open(NETLINK_ROUTE, &GROUPS)?;
        let features = Features::open()?;
        let failed = |errno: Errno| KernelError::Io {
            call: "epoll",
            source: errno.into(),
        };
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        ready.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        if let Some(changes) = features.changes() {
            ready.add(changes, EpollEvent::new(EpollFlags::EPOLLIN, 1)).map_err(failed)?;
        }
        Ok(Self {
            requests: Channel::open(NETLINK_ROUTE)?,
            routes: Routes::open()?,
            events,
            features,
            ready,
        })
    }

    /// Requests some of the routes once more.
    fn ask_again(&mut self, queries: &[Query], which: &[usize], mut answer: impl FnMut(usize, Answer)) -> Result<(), KernelError> {
        let again: Vec<Query> = which.iter().map(|&n| queries[n]).collect();
        for (&n, found) in which.iter().zip(self.routes.ask(&again)?) {
            answer(n, found);
        }
        Ok(())
    }

    /// Returns the addresses that belong to this host.
    fn own_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) -> Result<HashSet<IpAddr>, KernelError> {
        let mut addresses: Vec<IpAddr> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let queries: Vec<Query> = addresses
            .iter()
            .map(|&dst| Query {
                dst,
                src: None,
                fib_match: false,
                selectors: Selectors::default(),
            })
            .collect();
        let answers = self.routes.ask(&queries)?;
        Ok(addresses
            .into_iter()
            .zip(answers)
            .filter(|(_, answer)| matches!(answer, Answer::Local))
            .map(|(address, _)| address)
            .collect())
    }

    /// Ends the kernel's management of all neighbours that this program requested, in this process or a former one.
    ///
    /// # Errors
    /// The kernel does not list them, or rejects a change.
    pub fn unmanage_all(&mut self) -> Result<(), KernelError> {
        let all = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let own = self.dump(&all, |message, own| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message
                && message.attributes.contains(&NeighbourAttribute::Protocol(ORIGIN.into()))
            {
                own.extend(messages::read_neighbour(&message).filter(|(_, neighbour)| neighbour.managed));
            }
        })?;
        for ((ifindex, addr), neighbour) in own {
            self.unmanage_neighbour(ifindex, addr, neighbour.mac)?;
        }
        Ok(())
    }

    /// Returns everything that the kernel lists, from one consistent dump.
    fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        mut read: impl FnMut(RouteNetlinkMessage, &mut Vec<T>),
    ) -> Result<Vec<T>, KernelError> {
        for _ in 0..DUMPS {
            let mut found = Vec::new();
            match self.requests.ask(request.clone(), NLM_F_DUMP, |message| read(message, &mut found)) {
                Err(KernelError::Rejected { source }) if source.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(|()| found),
            }
        }
        Err(KernelError::Malformed(
            "the kernel's list changed during each attempt to read it".into(),
        ))
    }

    fn ask_neighbour(&mut self, flags: u16, message: RouteNetlinkMessage) -> Result<(), KernelError> {
        self.requests.ask(message, NLM_F_ACK | flags, |_| ())
    }
}

impl Kernel for Netlink {
    fn links(&mut self) -> Result<Vec<Link>, KernelError> {
        self.dump(&messages::links_request(), |message, links| {
            if let RouteNetlinkMessage::NewLink(message) = message {
                links.extend(messages::read_link(message));
            }
        })
    }

    fn routes(&mut self, wanted: &[(IpAddr, IpAddr)]) -> Result<Vec<Option<Route>>, KernelError> {
        let source = |dst: IpAddr, src: IpAddr| (src.is_ipv4() == dst.is_ipv4() && !src.is_unspecified()).then_some(src);
        let mut queries: Vec<Query> = wanted
            .iter()
            .map(|&(dst, src)| Query {
                dst,
                src: source(dst, src),
                fib_match: false,
                selectors: Selectors::default(),
            })
            .collect();
        let mut answers = self.routes.ask(&queries)?;

        // The source is no address of this host: the kernel decides by the destination alone.
        let rejected: Vec<usize> = (0..wanted.len())
            .filter(|&n| matches!(answers[n], Answer::Rejected) && queries[n].src.is_some())
            .collect();
        let own = self.own_addresses(rejected.iter().filter_map(|&n| queries[n].src))?;
        let foreign: Vec<usize> = rejected
            .into_iter()
            .filter(|&n| queries[n].src.is_some_and(|src| !own.contains(&src)))
            .collect();
        for &n in &foreign {
            queries[n].src = None;
        }
        self.ask_again(&queries, &foreign, |n, answer| answers[n] = answer)?;

        // A cached path MTU hides the route, which has the configured MTU.
        let cached: Vec<usize> = (0..wanted.len()).filter(|&n| matches!(answers[n], Answer::Exception(_))).collect();
        for &n in &cached {
            queries[n].fib_match = true;
        }
        self.ask_again(&queries, &cached, |n, behind| {
            if let Answer::Exception(route) = answers[n] {
                answers[n] = Answer::Route(Route {
                    mtu: behind.mtu(),
                    ..route
                });
            }
        })?;
        Ok(answers.into_iter().map(Answer::route).collect())
    }

    fn neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<Option<Neighbour>, KernelError> {
        let mut found = None;
        let message = RouteNetlinkMessage::GetNeighbour(messages::neighbour(ifindex, addr));
        let asked = self.requests.ask(message, 0, |message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                found = messages::read_neighbour(&message).map(|(_, neighbour)| neighbour);
            }
        });
        match asked {
            // The entry or the interface does not exist.
            Err(KernelError::Rejected { .. }) => Ok(None),
            other => other.map(|()| found),
        }
    }

    fn manage_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError> {
        let mut message = messages::neighbour(ifindex, addr);
        message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
        message.attributes.push(NeighbourAttribute::Protocol(ORIGIN.into()));
        self.ask_neighbour(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message))
    }

    fn probe_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError> {
        let mut message = messages::neighbour(ifindex, addr);
        message.header.flags = NeighbourFlags::Use;
        self.ask_neighbour(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message))
    }

    fn unmanage_neighbour(&mut self, ifindex: u32, addr: IpAddr, mac: Option<[u8; 6]>) -> Result<(), KernelError> {
        let mut message = messages::neighbour(ifindex, addr);
        let done = if let Some(mac) = mac {
            message.header.state = NeighbourState::Stale;
            message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
            self.ask_neighbour(NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message))
        } else {
            self.ask_neighbour(0, RouteNetlinkMessage::DelNeighbour(message))
        };
        match done {
            Err(KernelError::Rejected { source })
                if [libc::ENOENT, libc::ENODEV, libc::ENXIO, libc::ENETDOWN].contains(&source.raw_os_error().unwrap_or_default()) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn xdp_transmit(&mut self, ifindex: u32) -> Option<bool> {
        self.features.xdp_transmit(ifindex)
    }

    fn events(&mut self, limit: usize) -> Events {
        let mut events = Events {
            more: true,
            ..Events::default()
        };
        for _ in 0..limit {
            match self.events.receive() {
                Ok(Received::Nothing) => {
                    events.more = false;
                    break;
                }
                Ok(Received::Messages(data)) => {
                    for message in channel::split(data) {
                        read_event(message, &mut events.list);
                    }
                }
                Ok(Received::Lost) => events.list.push(Event::Lost),
                Err(error) => {
                    warn!(%error, "kernel events cannot be received");
                    events.list.push(Event::Lost);
                    events.more = false;
                    break;
                }
            }
        }
        if events
            .list
            .iter()
            .any(|event| !matches!(event, Event::Neighbour { .. } | Event::NeighbourGone { .. }))
        {
            self.routes.forget();
        }
        if self.features.take_changes() {
            events.list.push(Event::Features);
        }
        events
    }
}

/// Routes are not read here: after any change, the kernel is queried for the route of each destination.
fn read_event(message: NetlinkBuffer<&[u8]>, events: &mut Vec<Event>) {
    let event = match message.message_type() {
        libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => messages::read_event(message),
        _ => Some(Event::Routes),
    };
    // Consecutive route changes count as one.
    if event.is_some() && !(event == Some(Event::Routes) && events.last() == Some(&Event::Routes)) {
        events.extend(event);
    }
}

/// Readable if [`Kernel::events`] has something to return.
impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}
