//! The host's output path: what the kernel would do to a packet of the relay and the XDP programs would not.
//!
//! The programs send packets from the driver's receive path. A flow stays on the relay if the kernel would encrypt, block, translate or
//! mark its packets, or route them by more than their addresses. It also stays on the relay if this cannot be decided. There is one
//! exception: a firewall rule that drops packets counts only if it certainly matches, because otherwise every host with a firewall would
//! lose the offload.

mod netfilter;
mod rules;
mod xfrm;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use tracing::{debug, warn};

use self::netfilter::{Outcome, Packet, Ruleset};
use self::rules::Rules;
use self::xfrm::Policies;
use crate::kernel::{KernelError, Route};
use crate::netlink::channel::{Channel, Received, Subscription};
use crate::netlink::raw::Raw;
use crate::netlink::routes::{Query, Routes, Selectors};

const UDP: u8 = 17;
/// `XFRMNLGRP_POLICY`
const XFRM_POLICY_GROUP: u32 = 4;
/// `NFNLGRP_NFTABLES`
const NFTABLES_GROUP: u32 = 7;
/// Number of attempts at a dump that changes interrupt.
const DUMPS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// The packets of a stream, as they leave or arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// `None`: the packets keep the sender's DSCP.
    pub dscp: Option<u8>,
}

/// The host's configuration, as far as it concerns packets of a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    xfrm: Policies,
    rules: Rules,
    netfilter: Ruleset,
    /// The part that could not be read: every flow stays on the relay.
    unread: Option<String>,
}

impl Snapshot {
    fn has_any(&self) -> bool {
        self.xfrm.has_any() || self.rules.has_any() || self.netfilter.has_any() || self.unread.is_some()
    }
}

/// The policies of the calling thread's network namespace at the time of creation.
pub struct HostPolicy {
    xfrm: Option<Channel>,
    netfilter: Option<Channel>,
    routes: Routes,
    rules: Channel,
    subscriptions: Vec<Subscription>,
    ready: Epoll,
    snapshot: Snapshot,
}

/// Opens a family; a kernel built without it has no policies.
fn optional(opened: Result<Channel, KernelError>) -> Result<Option<Channel>, KernelError> {
    match opened {
        Err(KernelError::Io { source, .. }) if source.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        other => other.map(Some),
    }
}

fn is_absent(error: &KernelError) -> bool {
    let KernelError::Rejected { source } = error else { return false };
    [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOENT, libc::EAFNOSUPPORT].contains(&source.raw_os_error().unwrap_or_default())
}

impl HostPolicy {
    /// Reads what is configured and subscribes to changes.
    ///
    /// # Errors
    /// A socket cannot be created. A family that the kernel was built without is no error.
    pub fn new() -> Result<Self, KernelError> {
        let xfrm = optional(Channel::open(NETLINK_XFRM))?;
        let netfilter = optional(Channel::open(NETLINK_NETFILTER))?;
        let mut subscriptions = vec![Subscription::open(
            NETLINK_ROUTE,
            &[
                libc::RTNLGRP_IPV4_RULE,
                libc::RTNLGRP_IPV6_RULE,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV6_ROUTE,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_LINK,
            ],
        )?];
        if xfrm.is_some() {
            subscriptions.push(Subscription::open(NETLINK_XFRM, &[XFRM_POLICY_GROUP])?);
        }
        if netfilter.is_some() {
            subscriptions.push(Subscription::open(NETLINK_NETFILTER, &[NFTABLES_GROUP])?);
        }
        let failed = |errno: Errno| KernelError::Io {
            call: "epoll",
            source: errno.into(),
        };
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        for (number, subscription) in (0..).zip(&subscriptions) {
            ready
                .add(subscription, EpollEvent::new(EpollFlags::EPOLLIN, number))
                .map_err(failed)?;
        }
        let mut made = Self {
            xfrm,
            netfilter,
            routes: Routes::open()?,
            rules: Channel::open(NETLINK_ROUTE)?,
            subscriptions,
            ready,
            snapshot: Snapshot::default(),
        };
        made.snapshot = made.read();
        Ok(made)
    }

    /// Applies changes; returns whether flows must be checked again. Does not block.
    pub fn follow(&mut self) -> bool {
        let mut changed = vec![false; self.subscriptions.len()];
        for (subscription, changed) in self.subscriptions.iter_mut().zip(&mut changed) {
            loop {
                match subscription.receive() {
                    Ok(Received::Nothing) => break,
                    Ok(_) => *changed = true,
                    Err(error) => {
                        warn!(%error, "changes of the host's policies cannot be received");
                        *changed = true;
                        break;
                    }
                }
            }
        }
        let routed = changed.first() == Some(&true);
        if routed {
            self.routes.forget();
        }
        if !changed.contains(&true) && self.snapshot.unread.is_none() {
            return false;
        }
        let now = self.read();
        let depends_on_routes = now.rules.has_any() || now.netfilter.has_any();
        let news = now != self.snapshot || (routed && depends_on_routes);
        self.snapshot = now;
        news
    }

    /// Lists the parts of the configuration that can keep flows on the relay, one line each.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let Snapshot {
            xfrm,
            rules,
            netfilter,
            unread,
        } = &self.snapshot;
        let mut lines = Vec::new();
        if xfrm.has_any() {
            lines.push(format!("{} IPsec policies", xfrm.list.len()));
        }
        lines.extend(rules.summary());
        lines.extend(netfilter.summary());
        lines.extend(unread.clone());
        lines
    }

    /// Returns why the kernel has to send packets that arrive as `arriving` and leave as `leaving`; `None` if the programs may send them.
    pub fn denies(&mut self, arriving: &Flow, leaving: &Flow) -> Option<String> {
        if !self.snapshot.has_any() {
            return None;
        }
        let Self { snapshot, routes, .. } = self;
        if let Some(unread) = &snapshot.unread {
            return Some(unread.clone());
        }
        if let Some(policy) = snapshot
            .xfrm
            .denies(Direction::Out, leaving)
            .or_else(|| snapshot.xfrm.denies(Direction::In, arriving))
        {
            return Some(policy);
        }
        let base = Selectors::default();
        let mark = if snapshot.netfilter.has_any() {
            let mut route = |selectors| ask(routes, leaving, selectors);
            let packet = Packet {
                flow: leaving,
                output: &mut || route(base).ok()?.map(|route| route.ifindex),
            };
            match snapshot.netfilter.run(packet) {
                Outcome::Sent { mark } => mark,
                Outcome::Touched(text) => return Some(text),
            }
        } else {
            Some(0)
        };
        let variants = snapshot.rules.variants(leaving, mark);
        if variants.is_empty() {
            return None;
        }
        let mut answers = std::iter::once(base)
            .chain(variants)
            .map(|selectors| ask(routes, leaving, selectors));
        let first = answers.next()?;
        match answers.find(|answer| answer.is_err() || answer.as_ref().ok() != first.as_ref().ok()) {
            None if first.is_ok() => None,
            None | Some(Err(_)) => Some("its route could not be read".to_owned()),
            Some(Ok(_)) => Some(snapshot.rules.reason()),
        }
    }

    fn read(&mut self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut unread = Vec::new();
        if let Some(channel) = &mut self.xfrm {
            match read_xfrm(channel) {
                Ok(policies) => snapshot.xfrm = policies,
                Err(error) if is_absent(&error) => {}
                Err(error) => unread.push(format!("the IPsec policies could not be read: {error}")),
            }
        }
        match read_rules(&mut self.rules) {
            Ok(rules) => snapshot.rules = rules,
            Err(error) => unread.push(format!("the routing rules could not be read: {error}")),
        }
        if let Some(channel) = &mut self.netfilter {
            match netfilter::read(channel) {
                Ok(ruleset) => snapshot.netfilter = ruleset,
                Err(error) if is_absent(&error) => {}
                Err(error) => unread.push(format!("the nftables rules could not be read: {error}")),
            }
        }
        for text in &unread {
            warn!("{text}: streams stay on the relay");
        }
        snapshot.unread = (!unread.is_empty()).then(|| unread.join("; "));
        debug!(?snapshot, "host policy");
        snapshot
    }
}

fn ask(routes: &mut Routes, flow: &Flow, selectors: Selectors) -> Result<Option<Route>, KernelError> {
    let src: IpAddr = flow.src.ip();
    let query = Query {
        dst: flow.dst.ip(),
        src: (src.is_ipv4() == flow.dst.is_ipv4()).then_some(src),
        fib_match: false,
        selectors,
    };
    let answers = routes.ask(&[query])?;
    Ok(answers.into_iter().next().and_then(crate::netlink::messages::Answer::route))
}

/// Makes one dump, and repeats it if a change interrupted it.
pub(crate) fn dump(channel: &mut Channel, request: &Raw, mut each: impl FnMut(&mut Vec<Raw>, Raw)) -> Result<Vec<Raw>, KernelError> {
    for _ in 0..DUMPS {
        let mut found = Vec::new();
        match channel.ask(request.clone(), NLM_F_DUMP, |message| each(&mut found, message)) {
            Err(KernelError::Rejected { source }) if source.raw_os_error() == Some(libc::EINTR) => {}
            other => return other.map(|()| found),
        }
    }
    Err(KernelError::Rejected {
        source: io::Error::from_raw_os_error(libc::EINTR),
    })
}

fn read_xfrm(channel: &mut Channel) -> Result<Policies, KernelError> {
    let request = Raw {
        kind: xfrm::XFRM_MSG_GETPOLICY,
        body: vec![0; xfrm::POLICY_ID_LENGTH],
    };
    let messages = dump(channel, &request, |found, message| found.push(message))?;
    let mut policies = Policies {
        list: messages
            .iter()
            .filter(|message| message.kind == xfrm::XFRM_MSG_NEWPOLICY)
            .filter_map(|message| xfrm::Policy::read(&message.body))
            .collect(),
        ..Policies::default()
    };
    let request = Raw {
        kind: xfrm::XFRM_MSG_GETDEFAULT,
        body: vec![0; 4],
    };
    // Kernels before 5.15 do not have a default policy.
    match channel.ask(request, 0, |message: Raw| policies.read_default(&message.body)) {
        Ok(()) | Err(KernelError::Rejected { .. }) => Ok(policies),
        Err(error) => Err(error),
    }
}

fn read_rules(channel: &mut Channel) -> Result<Rules, KernelError> {
    for _ in 0..DUMPS {
        let mut rules = Rules::default();
        let request = RouteNetlinkMessage::GetRule(RuleMessage::default());
        let asked = channel.ask(request, NLM_F_DUMP, |message| {
            if let RouteNetlinkMessage::NewRule(rule) = message {
                rules.add(&rule);
            }
        });
        match asked {
            Err(KernelError::Rejected { source }) if source.raw_os_error() == Some(libc::EINTR) => {}
            other => return other.map(|()| rules),
        }
    }
    Err(KernelError::Rejected {
        source: io::Error::from_raw_os_error(libc::EINTR),
    })
}

/// Readable if [`HostPolicy::follow`] has something to do.
impl AsFd for HostPolicy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}
