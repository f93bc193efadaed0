//! Policy routing: rules that select by more than addresses. Pure.

use std::collections::BTreeSet;

use netlink_packet_route::rule::{RuleAttribute, RuleMessage};

use super::{Flow, UDP};
use crate::netlink::routes::Selectors;

/// The selectors of the host's rules, besides addresses and interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Some rule for UDP selects by a port.
    ports: bool,
    marks: BTreeSet<u32>,
    /// The first user of each range.
    users: BTreeSet<u32>,
    tos: BTreeSet<u8>,
}

impl Rules {
    pub(super) fn add(&mut self, rule: &RuleMessage) {
        let (mut ports, mut udp) = (false, true);
        for attribute in &rule.attributes {
            match attribute {
                // Rules with `fwmark 0` match like rules without a mark.
                RuleAttribute::FwMark(mark) => drop(self.marks.insert(*mark)),
                RuleAttribute::UidRange(range) => drop(self.users.insert(range.start)),
                RuleAttribute::SourcePortRange(_) | RuleAttribute::DestinationPortRange(_) => ports = true,
                RuleAttribute::IpProtocol(protocol) => udp = i32::from(*protocol) == i32::from(UDP),
                _ => {}
            }
        }
        self.ports |= ports && udp;
        if rule.header.tos != 0 {
            self.tos.insert(rule.header.tos);
        }
    }

    pub(super) fn has_any(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn summary(&self) -> Option<String> {
        let by = [
            (self.ports, "port"),
            (!self.marks.is_empty(), "mark"),
            (!self.users.is_empty(), "user"),
            (!self.tos.is_empty(), "TOS"),
        ];
        let by: Vec<&str> = by.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        (!by.is_empty()).then(|| format!("routing rules (ip rule) by {}", by.join(", ")))
    }

    pub(super) fn reason(&self) -> String {
        format!("{} may select another route", self.summary().unwrap_or_default())
    }

    /// Returns the other selectors with which the kernel may look up this flow's route. `mark`: the mark that netfilter gives its packets;
    /// `None` if unknown.
    pub(super) fn variants(&self, flow: &Flow, mark: Option<u32>) -> Vec<Selectors> {
        let base = Selectors {
            ports: self.ports.then(|| (flow.src.port(), flow.dst.port())),
            ..Selectors::default()
        };
        let marks: Vec<u32> = match mark {
            Some(mark) if self.marks.is_empty() || mark == 0 => vec![0],
            Some(mark) => vec![mark],
            None => std::iter::once(0).chain(self.marks.iter().copied()).collect(),
        };
        let users = std::iter::once(None).chain(self.users.iter().map(|uid| Some(*uid)));
        let tos: Vec<u8> = match flow.dscp {
            _ if self.tos.is_empty() => vec![0],
            Some(dscp) => vec![dscp << 2],
            None => std::iter::once(0).chain(self.tos.iter().copied()).collect(),
        };
        let mut variants = Vec::new();
        for uid in users {
            for &mark in &marks {
                variants.extend(tos.iter().map(|&tos| Selectors { mark, uid, tos, ..base }));
            }
        }
        variants.retain(|variant| *variant != Selectors::default());
        variants
    }
}
