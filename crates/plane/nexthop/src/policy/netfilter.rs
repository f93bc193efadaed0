//! nftables, and iptables on top of it: what the chains at output and postrouting do to a UDP packet of the relay.
//!
//! The rules run on a packet with known addresses, ports and protocol. A rule that tests anything else may match or not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nix::net::if_::if_indextoname;

use super::{Flow, UDP};
use crate::kernel::KernelError;
use crate::netlink::channel::Channel;
use crate::netlink::raw::{Raw, attribute, attributes, be32, string, u16_at, u32_at};

// linux/netfilter/nfnetlink.h, nf_tables.h
const SUBSYSTEM: u16 = 10 << 8;
const GETCHAIN: u16 = SUBSYSTEM | 4;
const GETRULE: u16 = SUBSYSTEM | 7;
/// `struct nfgenmsg`
const HEADER: usize = 4;
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const LOCAL_OUT: u32 = 3;
const POST_ROUTING: u32 = 4;
/// Depth of jumps that the kernel accepts.
const DEPTH: usize = 16;
/// Number of rules evaluated for one packet, because chains may be jumped to repeatedly.
const STEPS: usize = 20_000;

const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const QUEUE: i32 = 3;
const CONTINUE: i32 = -1;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;

/// The packet that rules are evaluated for.
pub(super) struct Packet<'a> {
    pub(super) flow: &'a Flow,
    /// The interface by which the packet leaves, looked up when a rule tests it; `None`: unknown.
    pub(super) output: &'a mut dyn FnMut() -> Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The packet leaves unchanged. `mark`: the mark that rules of the output chains set; `None`: unknown.
    Sent { mark: Option<u32> },
    /// Some rule may change it, or certainly drops it.
    Touched(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Drop,
    Accept,
    Continue,
    Return,
    Jump(String),
    Goto(String),
    /// The verdict comes from a verdict map, which is not read.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An expression, as far as it is supported. Registers are byte offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Payload {
        to: usize,
        base: u32,
        offset: usize,
        length: usize,
    },
    Meta {
        to: usize,
        key: u32,
    },
    Immediate {
        to: usize,
        value: Vec<u8>,
    },
    Bitwise {
        from: usize,
        to: usize,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Compare {
        from: usize,
        how: Comparison,
        value: Vec<u8>,
    },
    Range {
        from: usize,
        inside: bool,
        low: Vec<u8>,
        high: Vec<u8>,
    },
    Verdict(Verdict),
    /// The register gets an unknown value.
    Load {
        to: usize,
    },
    /// May match or not.
    Maybe,
    Never,
    /// Changes the packet, with a description of the change.
    Change(&'static str),
    MarkFrom {
        from: usize,
    },
    /// `(mark & !mask) ^ value`
    SetMark {
        value: u32,
        mask: u32,
    },
    UnknownMark,
    MarkIs {
        value: u32,
        mask: u32,
        invert: bool,
    },
    Ports {
        src: (u16, u16),
        dst: (u16, u16),
        invert_src: bool,
        invert_dst: bool,
    },
}

type ChainName = (u8, String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    hook: u32,
    priority: i32,
    drops: bool,
    chain: ChainName,
}

/// The chains of a host that packets of local processes pass, and the chains that these jump to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ruleset {
    bases: Vec<Base>,
    chains: BTreeMap<ChainName, Vec<Vec<Expression>>>,
}

fn chain_name(body: &[u8], table: u16, chain: u16) -> Option<ChainName> {
    let data = body.get(HEADER..)?;
    Some((*body.first()?, string(data, table)?, string(data, chain)?))
}

pub(super) fn read(channel: &mut Channel) -> Result<Ruleset, KernelError> {
    let request = |kind| Raw {
        kind,
        body: vec![0; HEADER],
    };
    let all = |channel: &mut Channel, kind| super::dump(channel, &request(kind), |found, message| found.push(message));
    let chains = all(channel, GETCHAIN)?;
    let rules = all(channel, GETRULE)?;
    Ok(Ruleset::new(&chains, &rules))
}

impl Ruleset {
    fn new(chains: &[Raw], rules: &[Raw]) -> Self {
        let mut made = Self::default();
        for message in chains {
            made.add_chain(&message.body);
        }
        for message in rules {
            made.add_rule(&message.body);
        }
        made.bases
            .sort_by(|one, other| (one.hook, one.priority, &one.chain).cmp(&(other.hook, other.priority, &other.chain)));
        made.keep_reachable();
        made
    }

    fn add_chain(&mut self, body: &[u8]) -> Option<()> {
        const TABLE: u16 = 1;
        const NAME: u16 = 3;
        const HOOK: u16 = 4;
        const POLICY: u16 = 5;
        let name = chain_name(body, TABLE, NAME)?;
        if ![INET, IPV4, IPV6].contains(&name.0) {
            return None;
        }
        let data = body.get(HEADER..)?;
        if let Some(hook) = attribute(data, HOOK) {
            let (number, priority) = (be32(hook, 1)?, be32(hook, 2)?);
            if number == LOCAL_OUT || number == POST_ROUTING {
                self.bases.push(Base {
                    hook: number,
                    priority: priority.cast_signed(),
                    drops: be32(data, POLICY) == Some(0),
                    chain: name.clone(),
                });
            }
        }
        self.chains.entry(name).or_default();
        Some(())
    }

    fn add_rule(&mut self, body: &[u8]) -> Option<()> {
        const TABLE: u16 = 1;
        const CHAIN: u16 = 2;
        const EXPRESSIONS: u16 = 4;
        let rules = self.chains.get_mut(&chain_name(body, TABLE, CHAIN)?)?;
        let list = attribute(body.get(HEADER..)?, EXPRESSIONS).unwrap_or_default();
        rules.push(attributes(list).flat_map(|(_, element)| expression(element)).collect());
        Some(())
    }

    /// Removes chains that no packet of a local process reaches, and base chains that do nothing.
    fn keep_reachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut queue: Vec<ChainName> = self.bases.iter().map(|base| base.chain.clone()).collect();
        while let Some(name) = queue.pop() {
            if !reached.insert(name.clone()) {
                continue;
            }
            for expression in self.chains.get(&name).into_iter().flatten().flatten() {
                match expression {
                    Expression::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => queue.push((name.0, name.1.clone(), to.clone())),
                    Expression::Verdict(Verdict::Unknown) => queue.extend(self.of_table(&name).cloned().collect::<Vec<_>>()),
                    _ => {}
                }
            }
        }
        self.chains.retain(|name, _| reached.contains(name));
        let chains = &self.chains;
        self.bases
            .retain(|base| base.drops || chains.get(&base.chain).is_some_and(|rules| !rules.is_empty()));
    }

    /// Returns the chains of the same table that no hook calls.
    fn of_table(&self, name: &ChainName) -> impl Iterator<Item = &ChainName> {
        let (family, table) = (name.0, name.1.clone());
        self.chains
            .keys()
            .filter(move |other| other.0 == family && other.1 == table && !self.bases.iter().any(|base| base.chain == **other))
    }

    pub(super) fn has_any(&self) -> bool {
        !self.bases.is_empty()
    }

    pub(super) fn summary(&self) -> Option<String> {
        let tables: BTreeSet<String> = self.bases.iter().map(|base| shown(&base.chain)).collect();
        let tables: Vec<String> = tables.into_iter().collect();
        (!tables.is_empty()).then(|| format!("netfilter chains at output or postrouting: {}", tables.join(", ")))
    }

    pub(super) fn run(&self, packet: Packet<'_>) -> Outcome {
        let is_v4 = packet.flow.dst.is_ipv4();
        let mut run = Run {
            ruleset: self,
            packet,
            mark: Some(0),
            steps: 0,
        };
        for base in self
            .bases
            .iter()
            .filter(|base| [INET, if is_v4 { IPV4 } else { IPV6 }].contains(&base.chain.0))
        {
            let end = run.chain(&base.chain, true, 0);
            let dropped = match end {
                End::Touched(text) => return Outcome::Touched(format!("{} {text}", shown(&base.chain))),
                End::Dropped => true,
                End::Past { certain } => certain && base.drops,
                End::Accepted => false,
            };
            if dropped {
                return Outcome::Touched(format!("{} drops it", shown(&base.chain)));
            }
        }
        Outcome::Sent { mark: run.mark }
    }
}

fn shown((family, table, chain): &ChainName) -> String {
    let family = match *family {
        IPV4 => "ip",
        IPV6 => "ip6",
        _ => "inet",
    };
    format!("nftables chain {family} {table} {chain}")
}

/// How a chain ends.
enum End {
    Touched(String),
    Dropped,
    Accepted,
    /// The packet passed the last rule, or the chain returned. `certain`: no rule may have ended it before.
    Past {
        certain: bool,
    },
}

/// How a rule ends.
enum Matched {
    No,
    Maybe,
    Yes,
}

struct Run<'a, 'p> {
    ruleset: &'a Ruleset,
    packet: Packet<'p>,
    mark: Option<u32>,
    steps: usize,
}

/// End of `NFT_REG32_15`.
const REGISTERS: usize = 64;

impl Run<'_, '_> {
    /// Evaluates a chain. `certain`: the packet certainly enters it.
    fn chain(&mut self, name: &ChainName, mut certain: bool, depth: usize) -> End {
        let Some(rules) = self.ruleset.chains.get(name) else {
            return End::Past { certain: false };
        };
        if depth > DEPTH {
            return End::Touched("jumps too deep".into());
        }
        for rule in rules {
            self.steps += 1;
            if self.steps > STEPS {
                return End::Touched("has too many rules to follow".into());
            }
            let (matched, verdict) = match self.rule(rule, certain) {
                Ok(found) => found,
                Err(text) => return End::Touched(text.into()),
            };
            let sure = match matched {
                Matched::No => continue,
                Matched::Maybe => false,
                Matched::Yes => certain,
            };
            let targets: Vec<ChainName> = match &verdict {
                None | Some(Verdict::Continue) => continue,
                Some(Verdict::Drop) if sure => return End::Dropped,
                Some(Verdict::Accept) if sure => return End::Accepted,
                Some(Verdict::Return) if sure => return End::Past { certain: true },
                // The rule may match: what follows is evaluated, but is no longer certain.
                Some(Verdict::Drop | Verdict::Accept | Verdict::Return) if matches!(matched, Matched::Yes) => {
                    return End::Past { certain: false };
                }
                Some(Verdict::Drop | Verdict::Accept | Verdict::Return) => {
                    certain = false;
                    continue;
                }
                Some(Verdict::Jump(to) | Verdict::Goto(to)) => vec![(name.0, name.1.clone(), to.clone())],
                Some(Verdict::Unknown) => self.ruleset.of_table(name).filter(|other| *other != name).cloned().collect(),
            };
            let goes = matches!(verdict, Some(Verdict::Goto(_)));
            let known = !matches!(verdict, Some(Verdict::Unknown));
            for target in targets {
                match self.chain(&target, sure && known, depth + 1) {
                    End::Past { certain: past } if goes && matches!(matched, Matched::Yes) => {
                        return End::Past { certain: past && certain };
                    }
                    End::Past { certain: past } => certain &= past || !sure,
                    end @ End::Touched(_) => return end,
                    end => {
                        if sure && known {
                            return end;
                        }
                        certain = false;
                    }
                }
                if !sure {
                    certain = false;
                }
            }
        }
        End::Past { certain }
    }

    /// Returns whether a rule matches, and its verdict; an error if it may change the packet.
    fn rule(&mut self, rule: &[Expression], certain: bool) -> Result<(Matched, Option<Verdict>), &'static str> {
        let mut registers = [None; REGISTERS];
        let mut matched = Matched::Yes;
        for expression in rule {
            let fits = match expression {
                Expression::Payload { to, base, offset, length } => {
                    for n in 0..*length {
                        store(&mut registers, to + n, self.packet.byte(*base, offset + n));
                    }
                    Some(true)
                }
                Expression::Meta { to, key } => {
                    self.meta(&mut registers, *to, *key);
                    Some(true)
                }
                Expression::Immediate { to, value } => {
                    for (n, byte) in value.iter().enumerate() {
                        store(&mut registers, to + n, Some(*byte));
                    }
                    Some(true)
                }
                Expression::Bitwise { from, to, mask, xor } => {
                    for (n, mask) in mask.iter().enumerate() {
                        let xor = xor.get(n).copied().unwrap_or(0);
                        let byte = if *mask == 0 { Some(0) } else { load(&registers, from + n) };
                        store(&mut registers, to + n, byte.map(|byte| byte & mask ^ xor));
                    }
                    Some(true)
                }
                Expression::Compare { from, how, value } => bytes_at(&registers, *from, value.len()).map(|bytes| {
                    let order = bytes.as_slice().cmp(value.as_slice());
                    match how {
                        Comparison::Equal => order.is_eq(),
                        Comparison::Unequal => order.is_ne(),
                        Comparison::Less => order.is_lt(),
                        Comparison::LessOrEqual => order.is_le(),
                        Comparison::Greater => order.is_gt(),
                        Comparison::GreaterOrEqual => order.is_ge(),
                    }
                }),
                Expression::Range { from, inside, low, high } => {
                    bytes_at(&registers, *from, low.len()).map(|bytes| (bytes >= *low && bytes <= *high) == *inside)
                }
                Expression::Load { to } => {
                    for n in 0..16 {
                        store(&mut registers, to + n, None);
                    }
                    Some(true)
                }
                Expression::Maybe => None,
                Expression::Never => Some(false),
                Expression::Change(what) => return Err(what),
                Expression::MarkFrom { from } => {
                    let value = bytes_at(&registers, *from, 4).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
                    self.set_mark(value, certain && matches!(matched, Matched::Yes));
                    Some(true)
                }
                Expression::SetMark { value, mask } => {
                    let value = self.mark.map(|mark| mark & !mask ^ value);
                    self.set_mark(value, certain && matches!(matched, Matched::Yes));
                    Some(true)
                }
                Expression::UnknownMark => {
                    self.mark = None;
                    Some(true)
                }
                Expression::MarkIs { value, mask, invert } => self.mark.map(|mark| (mark & mask == *value) != *invert),
                Expression::Ports {
                    src,
                    dst,
                    invert_src,
                    invert_dst,
                } => {
                    let within = |port: u16, range: &(u16, u16)| (range.0..=range.1).contains(&port);
                    let flow = self.packet.flow;
                    Some(within(flow.src.port(), src) != *invert_src && within(flow.dst.port(), dst) != *invert_dst)
                }
                Expression::Verdict(verdict) => return Ok((matched, Some(verdict.clone()))),
            };
            match fits {
                Some(true) => {}
                Some(false) => return Ok((Matched::No, None)),
                None => matched = Matched::Maybe,
            }
        }
        Ok((matched, None))
    }

    fn set_mark(&mut self, value: Option<u32>, certainly: bool) {
        if certainly {
            self.mark = value;
        } else if self.mark != value {
            self.mark = None;
        }
    }

    fn meta(&mut self, registers: &mut [Option<u8>; REGISTERS], to: usize, key: u32) {
        const PROTOCOL: u32 = 1;
        const MARK: u32 = 3;
        const IIF: u32 = 4;
        const OIF: u32 = 5;
        const IIFNAME: u32 = 6;
        const OIFNAME: u32 = 7;
        const NFPROTO: u32 = 15;
        const L4PROTO: u32 = 16;
        const NAME_LENGTH: usize = 16;
        let is_v4 = self.packet.flow.dst.is_ipv4();
        let value: Option<Vec<u8>> = match key {
            PROTOCOL => Some((if is_v4 { 0x0800_u16 } else { 0x86dd }).to_be_bytes().to_vec()),
            MARK => self.mark.map(|mark| mark.to_ne_bytes().to_vec()),
            // A local process sends the packet, so it has no input interface.
            IIF => Some(vec![0; 4]),
            IIFNAME => Some(vec![0; NAME_LENGTH]),
            OIF => (self.packet.output)().map(|index| index.to_ne_bytes().to_vec()),
            OIFNAME => (self.packet.output)().and_then(|index| if_indextoname(index).ok()).map(|name| {
                let mut bytes = name.into_bytes();
                bytes.resize(NAME_LENGTH, 0);
                bytes
            }),
            NFPROTO => Some(vec![if is_v4 { IPV4 } else { IPV6 }]),
            L4PROTO => Some(vec![UDP]),
            _ => None,
        };
        for n in 0..NAME_LENGTH {
            let byte = value.as_ref().and_then(|value| value.get(n).copied());
            store(registers, to + n, byte);
        }
    }
}

fn store(registers: &mut [Option<u8>; REGISTERS], at: usize, byte: Option<u8>) {
    if let Some(place) = registers.get_mut(at) {
        *place = byte;
    }
}

fn load(registers: &[Option<u8>; REGISTERS], at: usize) -> Option<u8> {
    registers.get(at).copied().flatten()
}

fn bytes_at(registers: &[Option<u8>; REGISTERS], at: usize, length: usize) -> Option<Vec<u8>> {
    (at..at + length).map(|at| load(registers, at)).collect()
}

impl Packet<'_> {
    /// Returns a byte of the packet, if known.
    fn byte(&self, base: u32, offset: usize) -> Option<u8> {
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let Flow { src, dst, dscp } = self.flow;
        let octet = |addr: IpAddr, at: usize| match addr {
            IpAddr::V4(addr) => addr.octets().get(at).copied(),
            IpAddr::V6(addr) => addr.octets().get(at).copied(),
        };
        match (base, dst.is_ipv4(), offset) {
            (NETWORK, true, 0) => Some(0x45),
            (NETWORK, true, 1) => dscp.map(|dscp| dscp << 2),
            (NETWORK, true, 9) => Some(UDP),
            (NETWORK, true, 12..16) => octet(src.ip(), offset - 12),
            (NETWORK, true, 16..20) => octet(dst.ip(), offset - 16),
            (NETWORK, false, 6) => Some(UDP),
            (NETWORK, false, 8..24) => octet(src.ip(), offset - 8),
            (NETWORK, false, 24..40) => octet(dst.ip(), offset - 24),
            (TRANSPORT, _, 0..2) => src.port().to_be_bytes().get(offset).copied(),
            (TRANSPORT, _, 2..4) => dst.port().to_be_bytes().get(offset - 2).copied(),
            _ => None,
        }
    }
}

/// Returns the byte offset of a register: `NFT_REG_1` to `NFT_REG_4` have 16 bytes, `NFT_REG32_00` and later ones 4.
fn register(number: u32) -> usize {
    let number = number as usize;
    if number < 8 {
        number.saturating_sub(1) * 16
    } else {
        (number - 8) * 4
    }
}

/// Returns the value in a nested `NFTA_DATA_VALUE`.
fn value(data: &[u8], name: u16) -> Option<Vec<u8>> {
    Some(attribute(attribute(data, name)?, 1)?.to_vec())
}

fn verdict(data: &[u8]) -> Option<Verdict> {
    let code = be32(data, 1)?.cast_signed();
    let chain = || string(data, 2);
    Some(match code {
        DROP => Verdict::Drop,
        ACCEPT => Verdict::Accept,
        CONTINUE => Verdict::Continue,
        RETURN => Verdict::Return,
        JUMP => Verdict::Jump(chain()?),
        GOTO => Verdict::Goto(chain()?),
        // NF_QUEUE, with the queue's number in the upper half.
        code if code & 0xff == QUEUE => Verdict::Drop,
        _ => Verdict::Unknown,
    })
}

/// Returns the expression of one `NFTA_LIST_ELEM`, and `None` for one that only counts or logs. An unknown expression may match or not.
fn expression(element: &[u8]) -> Option<Expression> {
    let name = string(element, 1).unwrap_or_default();
    let data = attribute(element, 2).unwrap_or_default();
    match name.as_str() {
        "counter" | "log" | "notrack" | "last" | "objref" | "dynset" | "flow_offload" => None,
        "nat" | "masq" | "redir" | "tproxy" => Some(Expression::Change("may translate its addresses")),
        "reject" | "queue" => Some(Expression::Verdict(Verdict::Drop)),
        "match" => matching(data),
        "target" => target(data),
        "payload" if attribute(data, 5).is_some() => Some(Expression::Change("may rewrite it")),
        _ => Some(plain(&name, data).unwrap_or(Expression::Maybe)),
    }
}

fn plain(name: &str, data: &[u8]) -> Option<Expression> {
    let register_of = |name| be32(data, name).map(register);
    let number = |name| be32(data, name).map(|number| number as usize);
    Some(match name {
        "payload" => Expression::Payload {
            to: register_of(1)?,
            base: be32(data, 2)?,
            offset: number(3)?,
            length: number(4)?.min(16),
        },
        "meta" => match (register_of(1), be32(data, 2)?, register_of(3)) {
            (Some(to), key, _) => Expression::Meta { to, key },
            (None, 3, Some(from)) => Expression::MarkFrom { from },
            // Sets the priority, the class or the like, which no receiver sees.
            (None, _, _) => Expression::Immediate { to: 0, value: Vec::new() },
        },
        "immediate" => match be32(data, 1)? {
            0 => Expression::Verdict(verdict(attribute(attribute(data, 2)?, 2)?)?),
            to => Expression::Immediate {
                to: register(to),
                value: value(data, 2)?,
            },
        },
        "bitwise" if be32(data, 6).unwrap_or(0) == 0 => Expression::Bitwise {
            from: register_of(1)?,
            to: register_of(2)?,
            mask: value(data, 4)?,
            xor: value(data, 5)?,
        },
        "cmp" => Expression::Compare {
            from: register_of(1)?,
            how: match be32(data, 2)? {
                0 => Comparison::Equal,
                1 => Comparison::Unequal,
                2 => Comparison::Less,
                3 => Comparison::LessOrEqual,
                4 => Comparison::Greater,
                5 => Comparison::GreaterOrEqual,
                _ => return None,
            },
            value: value(data, 3)?,
        },
        "range" => Expression::Range {
            from: register_of(1)?,
            inside: be32(data, 2)? == 0,
            low: value(data, 3)?,
            high: value(data, 4)?,
        },
        // The elements of a verdict map decide.
        "lookup" if be32(data, 3) == Some(0) => Expression::Verdict(Verdict::Unknown),
        "lookup" => Expression::Load { to: register_of(3)? },
        "ct" | "fib" | "rt" | "socket" | "exthdr" | "numgen" | "hash" | "osf" | "tunnel" | "xfrm" | "bitwise" | "byteorder" => {
            let to = if name == "bitwise" || name == "byteorder" {
                register_of(2)
            } else {
                register_of(1)
            };
            Expression::Load { to: to? }
        }
        _ => return None,
    })
}

/// Reads a match of iptables.
fn matching(data: &[u8]) -> Option<Expression> {
    const LOCAL: u16 = 1 << 2;
    let name = string(data, 1).unwrap_or_default();
    let info = attribute(data, 3).unwrap_or_default();
    let known = match name.as_str() {
        "comment" => return None,
        "tcp" | "sctp" | "icmp" | "icmp6" | "esp" | "ah" | "dccp" => Some(Expression::Never),
        "udp" => (|| {
            let flags = *info.get(8)?;
            Some(Expression::Ports {
                src: (u16_at(info, 0)?, u16_at(info, 2)?),
                dst: (u16_at(info, 4)?, u16_at(info, 6)?),
                invert_src: flags & 1 != 0,
                invert_dst: flags & 2 != 0,
            })
        })(),
        "mark" => (|| {
            Some(Expression::MarkIs {
                value: u32_at(info, 0)?,
                mask: u32_at(info, 4)?,
                invert: *info.get(8)? != 0,
            })
        })(),
        // struct xt_addrtype_info_v1: the destination is not local, or the packet would not leave.
        "addrtype" => {
            (u16_at(info, 0) == Some(0) && u16_at(info, 2) == Some(LOCAL) && u32_at(info, 4) == Some(0)).then_some(Expression::Never)
        }
        _ => None,
    };
    Some(known.unwrap_or(Expression::Maybe))
}

/// Reads a target of iptables.
fn target(data: &[u8]) -> Option<Expression> {
    let name = string(data, 1).unwrap_or_default();
    let info = attribute(data, 3).unwrap_or_default();
    Some(match name.as_str() {
        "LOG" | "NFLOG" | "TRACE" | "AUDIT" | "CT" | "NOTRACK" | "CONNSECMARK" | "SECMARK" | "CLASSIFY" | "TCPMSS" | "CHECKSUM" | "TEE"
        | "SET" | "LED" | "RATEEST" => return None,
        "REJECT" | "NFQUEUE" => Expression::Verdict(Verdict::Drop),
        "MASQUERADE" | "SNAT" | "DNAT" | "NETMAP" | "REDIRECT" => Expression::Change("may translate its addresses"),
        "MARK" => match (u32_at(info, 0), u32_at(info, 4)) {
            (Some(value), Some(mask)) => Expression::SetMark { value, mask },
            _ => Expression::UnknownMark,
        },
        "CONNMARK" | "HMARK" => Expression::UnknownMark,
        _ => Expression::Change("may rewrite it"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow() -> Flow {
        Flow {
            src: "10.0.0.1:35000".parse().unwrap(),
            dst: "192.0.2.9:4000".parse().unwrap(),
            dscp: None,
        }
    }

    proptest! {
        /// Reading and running arbitrary input terminates.
        #[test]
        fn any_bytes(
            chains in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..6),
            rules in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..6),
        ) {
            let raw = |bodies: Vec<Vec<u8>>| bodies.into_iter().map(|body| Raw { kind: 0, body }).collect::<Vec<_>>();
            let ruleset = Ruleset::new(&raw(chains), &raw(rules));
            ruleset.run(Packet { flow: &flow(), output: &mut || None });
        }

        /// Any program of expressions terminates.
        #[test]
        fn any_expressions(kinds in proptest::collection::vec((0u8..14, any::<u8>(), any::<[u8; 4]>()), 0..40)) {
            let name = |chain: &str| (IPV4, "t".to_owned(), chain.to_owned());
            let expressions: Vec<Expression> = kinds.into_iter().map(|(kind, at, value)| {
                let (from, value) = (usize::from(at), value.to_vec());
                match kind {
                    0 => Expression::Payload { to: from, base: 1, offset: 12, length: 4 },
                    1 => Expression::Meta { to: from, key: u32::from(at) % 20 },
                    2 => Expression::Immediate { to: from, value },
                    3 => Expression::Bitwise { from, to: from, mask: value.clone(), xor: value },
                    4 => Expression::Compare { from, how: Comparison::Less, value },
                    5 => Expression::Range { from, inside: true, low: value.clone(), high: value },
                    6 => Expression::Verdict(Verdict::Jump("a".into())),
                    7 => Expression::Verdict(Verdict::Goto("b".into())),
                    8 => Expression::Verdict(Verdict::Unknown),
                    9 => Expression::Maybe,
                    10 => Expression::MarkFrom { from },
                    11 => Expression::SetMark { value: 1, mask: 1 },
                    12 => Expression::Verdict(Verdict::Return),
                    _ => Expression::Verdict(Verdict::Drop),
                }
            }).collect();
            let rules: Vec<Vec<Expression>> = expressions.chunks(3).map(<[Expression]>::to_vec).collect();
            let ruleset = Ruleset {
                bases: vec![Base { hook: LOCAL_OUT, priority: 0, drops: true, chain: name("base") }],
                chains: ["base", "a", "b"].into_iter().map(|chain| (name(chain), rules.clone())).collect(),
            };
            ruleset.run(Packet { flow: &flow(), output: &mut || Some(1) });
        }
    }
}
