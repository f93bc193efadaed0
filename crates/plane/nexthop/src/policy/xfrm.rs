//! IPsec: which flows an xfrm policy would encrypt or block. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Direction, Flow, UDP};
use crate::netlink::raw::{attributes, u16_at, u32_at};

// linux/xfrm.h
pub(super) const XFRM_MSG_GETPOLICY: u16 = 0x15;
pub(super) const XFRM_MSG_NEWPOLICY: u16 = 0x13;
pub(super) const XFRM_MSG_GETDEFAULT: u16 = 0x28;
/// `struct xfrm_userpolicy_id`
pub(super) const POLICY_ID_LENGTH: usize = 64;
/// `struct xfrm_userpolicy_info`
const POLICY_INFO_LENGTH: usize = 168;
const XFRMA_TMPL: u16 = 5;
const XFRMA_POLICY_TYPE: u16 = 16;
const XFRMA_IF_ID: u16 = 31;
const XFRM_POLICY_BLOCK: u8 = 1;
const XFRM_USERPOLICY_BLOCK: u8 = 1;

/// One policy. Its mark is ignored: it may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    direction: Direction,
    src: (IpAddr, u8),
    dst: (IpAddr, u8),
    /// Port and mask.
    src_port: (u16, u16),
    dst_port: (u16, u16),
    protocol: u8,
    priority: u32,
    /// Main or sub policy: the kernel applies one of each.
    kind: u8,
    blocks: bool,
    encrypts: bool,
}

fn address(bytes: &[u8], is_v4: bool) -> Option<IpAddr> {
    if is_v4 {
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into())
    } else {
        Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?).into())
    }
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    u16_at(data, at).map(u16::from_be)
}

impl Policy {
    /// Reads a `XFRM_MSG_NEWPOLICY`; `None` for a policy that does not apply to packets of the host's relay: forwarding and socket
    /// policies, and policies of xfrm interfaces, which need a route to that interface.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let direction = match body.get(160)? {
            0 => Direction::In,
            1 => Direction::Out,
            _ => return None,
        };
        let is_v4 = u16_at(body, 40)? == 2;
        let (mut kind, mut encrypts) = (0, false);
        for (name, value) in attributes(body.get(POLICY_INFO_LENGTH..).unwrap_or_default()) {
            match name {
                XFRMA_TMPL => encrypts = !value.is_empty(),
                XFRMA_POLICY_TYPE => kind = *value.first()?,
                XFRMA_IF_ID if u32_at(value, 0)? != 0 => return None,
                _ => {}
            }
        }
        Some(Self {
            direction,
            dst: (address(body.get(..16)?, is_v4)?, *body.get(42)?),
            src: (address(body.get(16..32)?, is_v4)?, *body.get(43)?),
            dst_port: (be16(body, 32)?, be16(body, 34)?),
            src_port: (be16(body, 36)?, be16(body, 38)?),
            protocol: *body.get(44)?,
            priority: u32_at(body, 152)?,
            kind,
            blocks: *body.get(161)? == XFRM_POLICY_BLOCK,
            encrypts,
        })
    }

    fn covers(&self, flow: &Flow) -> bool {
        let port = |port: u16, (wanted, mask): (u16, u16)| (port ^ wanted) & mask == 0;
        within(flow.src.ip(), self.src)
            && within(flow.dst.ip(), self.dst)
            && port(flow.src.port(), self.src_port)
            && port(flow.dst.port(), self.dst_port)
            && [0, UDP].contains(&self.protocol)
    }

    fn is_restrictive(&self) -> bool {
        self.blocks || self.encrypts
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (src, dst) = (self.src, self.dst);
        let action = if self.blocks { "blocks" } else { "encrypts" };
        let direction = if self.direction == Direction::Out { "out" } else { "in" };
        write!(
            f,
            "the IPsec policy src {}/{} dst {}/{} dir {direction} {action} it",
            src.0, src.1, dst.0, dst.1
        )
    }
}

fn within(addr: IpAddr, (network, length): (IpAddr, u8)) -> bool {
    let length = u32::from(length);
    match (addr, network) {
        (IpAddr::V4(addr), IpAddr::V4(network)) => {
            (addr.to_bits() ^ network.to_bits())
                .checked_shr(32u32.saturating_sub(length))
                .unwrap_or(0)
                == 0
        }
        (IpAddr::V6(addr), IpAddr::V6(network)) => {
            (addr.to_bits() ^ network.to_bits())
                .checked_shr(128u32.saturating_sub(length))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

/// All policies of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies {
    pub(super) list: Vec<Policy>,
    /// Whether flows without a policy are blocked (`ip xfrm policy setdefault`).
    pub(super) blocks_in: bool,
    pub(super) blocks_out: bool,
}

impl Policies {
    /// Reads the answer to `XFRM_MSG_GETDEFAULT`.
    pub(super) fn read_default(&mut self, body: &[u8]) {
        self.blocks_in = body.first() == Some(&XFRM_USERPOLICY_BLOCK);
        self.blocks_out = body.get(2) == Some(&XFRM_USERPOLICY_BLOCK);
    }

    pub(super) fn has_any(&self) -> bool {
        self.blocks_in || self.blocks_out || self.list.iter().any(Policy::is_restrictive)
    }

    /// Returns why the kernel would not send or accept a packet of this flow unchanged. The policy with the lowest priority value decides;
    /// among equal values a restrictive policy does.
    pub(super) fn denies(&self, direction: Direction, flow: &Flow) -> Option<String> {
        let mut covering: Vec<&Policy> = self
            .list
            .iter()
            .filter(|policy| policy.direction == direction && policy.covers(flow))
            .collect();
        if covering.is_empty() {
            let blocks = if direction == Direction::Out {
                self.blocks_out
            } else {
                self.blocks_in
            };
            return blocks.then(|| "the default IPsec policy blocks it".to_owned());
        }
        covering.sort_by_key(|policy| (policy.kind, policy.priority, !policy.is_restrictive()));
        covering.dedup_by_key(|policy| policy.kind);
        covering.into_iter().find(|policy| policy.is_restrictive()).map(ToString::to_string)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str) -> Flow {
        Flow {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            dscp: None,
        }
    }

    fn policy(dst: &str, length: u8) -> Policy {
        let addr: IpAddr = dst.parse().unwrap();
        let any = if addr.is_ipv4() {
            IpAddr::from([0; 4])
        } else {
            IpAddr::from([0; 16])
        };
        Policy {
            direction: Direction::Out,
            src: (any, 0),
            dst: (addr, length),
            src_port: (0, 0),
            dst_port: (0, 0),
            protocol: 0,
            priority: 100,
            kind: 0,
            blocks: false,
            encrypts: true,
        }
    }

    fn denies(list: Vec<Policy>, flow: &Flow) -> bool {
        let policies = Policies {
            list,
            ..Policies::default()
        };
        policies.denies(Direction::Out, flow).is_some()
    }

    #[test]
    fn a_policy_covers_its_prefix_ports_and_protocol() {
        for (network, length, inside, outside) in [
            ("192.0.2.0", 24, "192.0.2.9:4000", "192.0.3.9:4000"),
            ("0.0.0.0", 0, "198.51.100.1:4000", "[2001:db8::1]:4000"),
            ("2001:db8::", 32, "[2001:db8::7]:4000", "[2001:db9::7]:4000"),
            ("::", 0, "[2001:db9::7]:4000", "192.0.2.9:4000"),
        ] {
            let src = if inside.starts_with('[') {
                "[2001:db8:1::1]:35000"
            } else {
                "10.0.0.1:35000"
            };
            assert!(denies(vec![policy(network, length)], &flow(src, inside)), "{network}/{length}");
            let src = if outside.starts_with('[') {
                "[2001:db8:1::1]:35000"
            } else {
                "10.0.0.1:35000"
            };
            assert!(!denies(vec![policy(network, length)], &flow(src, outside)), "{network}/{length}");
        }
        let media = flow("10.0.0.1:35000", "192.0.2.9:4000");
        let with = |change: fn(&mut Policy)| {
            let mut one = policy("192.0.2.0", 24);
            change(&mut one);
            denies(vec![one], &media)
        };
        assert!(with(|one| one.protocol = UDP));
        assert!(!with(|one| one.protocol = 6));
        assert!(with(|one| one.dst_port = (4000, 0xffff)));
        assert!(!with(|one| one.dst_port = (5060, 0xffff)));
        assert!(!with(|one| one.src_port = (5060, 0xffff)));
        assert!(!with(|one| one.direction = Direction::In));
        assert!(!with(|one| one.encrypts = false), "a policy without template lets it pass");
    }

    #[test]
    fn the_lowest_priority_value_decides_and_a_default_the_rest() {
        let media = flow("10.0.0.1:35000", "192.0.2.9:4000");
        let bypass = |priority| Policy {
            encrypts: false,
            priority,
            ..policy("192.0.2.9", 32)
        };
        assert!(!denies(vec![policy("192.0.2.0", 24), bypass(10)], &media));
        assert!(denies(vec![policy("192.0.2.0", 24), bypass(200)], &media));
        assert!(
            denies(vec![policy("192.0.2.0", 24), bypass(100)], &media),
            "when in doubt, the relay"
        );
        let sub = Policy { kind: 1, ..bypass(1) };
        assert!(
            denies(vec![policy("192.0.2.0", 24), sub], &media),
            "a sub policy does not replace the main one"
        );
        let mut none = Policies::default();
        none.read_default(&[2, 2, 1]);
        assert!(none.denies(Direction::Out, &media).is_some() && none.denies(Direction::In, &media).is_none());
    }
}
