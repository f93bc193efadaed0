//! A book with a data plane that does as it is told, and a clock that is set by hand.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_calls::*;
use shunt_latch::{Found, Policy};
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::Source;
use shunt_rtpproxy::Command;
use shunt_rtpproxy::capability::KeepAlive;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub fn end(text: &str) -> Endpoint {
    let socket: SocketAddr = text.parse().unwrap();
    Endpoint::new(socket.ip(), socket.port())
}

pub struct Bench {
    pub book: Book,
    pub relay: RelayId,
    pub kind: RelayKind,
    pub now: Time,
    pub number: u16,
    /// What the data plane has, by port: two entries at one port are a fault.
    pub held: BTreeMap<Endpoint, RelayEntry>,
    pub filters: BTreeMap<Endpoint, Vec<IpAddr>>,
    pub allowed: Vec<IpAddr>,
    pub outcome: Outcome,
    pub asked: Vec<(LineId, Vec<u8>)>,
    /// RTP packets that the relay has counted of each party, when it is asked about one that seems silent.
    pub counts: [u64; 2],
    /// The relay has no session any more.
    pub gone: bool,
    pub ended: Vec<Reason>,
    pub calls: Vec<Ended>,
    /// Entries that the last comparison found missing, and different.
    pub compared: (usize, usize),
    pub verdicts: Vec<Verdict>,
    pub happened: Vec<Happening>,
    /// Streams that became offloaded or have another reason for it, and how long that took.
    pub offloads: Vec<(StreamId, Option<Duration>)>,
    pub notified: Vec<Vec<u8>>,
    pub blocked: Vec<Found>,
    pub deleted: Vec<FiveTuple>,
    pub stored: usize,
    /// When entries last met a packet, where a test says so.
    pub met: HashMap<FiveTuple, Time>,
    /// No packet since.
    pub silent_since: Option<Time>,
    reported: bool,
}

impl Bench {
    /// Compare the plan with what was read, one entry or line after the other.
    pub fn compare(&mut self, now: Time, present: &[RelayEntry], changed: HashSet<Endpoint>) -> Vec<Decision> {
        let mut comparison = self.book.begin_compare(changed).with_entries(present.to_vec());
        self.go_on_comparing(now, &mut comparison)
    }

    pub fn go_on_comparing(&mut self, now: Time, comparison: &mut Comparison) -> Vec<Decision> {
        let mut all = Vec::new();
        loop {
            let (more, decisions) = self.book.go_on_comparing(now, comparison, 1);
            all.extend(decisions);
            if !more {
                self.compared = (comparison.missing(), comparison.different());
                return all;
            }
        }
    }

    pub fn new(settings: Settings) -> Self {
        Self::with_relay(settings, RelayKind::Rtpproxy)
    }

    pub fn with_relay(settings: Settings, kind: RelayKind) -> Self {
        let mut book = Book::new(settings, Policy::default());
        let relay = book.add_relay(Relay {
            name: "r1".into(),
            addresses: vec!["10.9.0.1".parse().unwrap(), "fd91:2::1".parse().unwrap()],
            ttl: Duration::from_secs(60),
            advertised: Vec::new(),
            setup_ttl: Duration::from_secs(60),
            symmetric_bridging: false,
            verifies_sources: false,
            keepalive: KeepAlive::TtlSubcommand,
            kind,
            may_query: true,
        });
        Self {
            book,
            relay,
            kind,
            now: Time::from(Duration::from_secs(1000)),
            number: 1,
            held: BTreeMap::new(),
            filters: BTreeMap::new(),
            allowed: Vec::new(),
            outcome: Outcome::Done,
            asked: Vec::new(),
            counts: [0; 2],
            gone: false,
            ended: Vec::new(),
            calls: Vec::new(),
            compared: (0, 0),
            verdicts: Vec::new(),
            happened: Vec::new(),
            offloads: Vec::new(),
            notified: Vec::new(),
            blocked: Vec::new(),
            deleted: Vec::new(),
            stored: 0,
            met: HashMap::new(),
            silent_since: None,
            reported: false,
        }
    }

    /// Do what the book decides, at once.
    pub fn carry_out(&mut self, decisions: Vec<Decision>) {
        let mut todo = decisions;
        while !todo.is_empty() {
            let mut next = Vec::new();
            for decision in todo {
                next.extend(self.one(decision));
            }
            todo = next;
        }
    }

    fn one(&mut self, decision: Decision) -> Vec<Decision> {
        match decision {
            Decision::Write(write) => {
                let mut outcome = self.outcome;
                match write.operation {
                    Operation::Delete(key) => {
                        outcome = Outcome::Done;
                        if self.held.get(&key.dst).is_some_and(|entry| entry.key() == key) {
                            self.held.remove(&key.dst);
                        }
                    }
                    Operation::Insert(entry) if outcome == Outcome::Done => {
                        assert!(self.held.insert(entry.port(), entry).is_none(), "two entries at {}", entry.port());
                    }
                    Operation::Modify(entry) if outcome == Outcome::Done => {
                        assert_eq!(self.held.insert(entry.port(), entry).unwrap().key(), entry.key());
                    }
                    _ => {}
                }
                return self.book.written(self.now, write.id, outcome, None, None);
            }
            Decision::Filter {
                port,
                allowed: Some(allowed),
            } => {
                self.filters.insert(port, allowed.to_vec());
            }
            Decision::DeleteOrphan(key) => self.deleted.push(key),
            Decision::Block(found) => self.blocked.push(found),
            Decision::Filter { port, allowed: None } => {
                self.filters.remove(&port);
            }
            Decision::Allow(addr) => self.allowed.push(addr),
            Decision::ReadIdle(keys) => {
                let read: Vec<Idle> = keys
                    .into_iter()
                    .map(|key| Idle {
                        key,
                        idle: Some(self.idle(&key)),
                        sequence: None,
                    })
                    .collect();
                return self.book.idle_times(self.now, &read);
            }
            Decision::AskRelay {
                line, purpose, command, ..
            } => {
                self.asked.push((line, command.clone()));
                if purpose == Purpose::Silence && self.kind == RelayKind::Rtpproxy {
                    let reply = format!("60 {} {} 0 0", self.counts[0], self.counts[1]);
                    return self.book.relay_replied(self.now, line, purpose, &command, Some(reply.as_bytes()));
                }
                if purpose == Purpose::Check || purpose == Purpose::KeepAlive {
                    let reply: &[u8] = match (self.kind, self.gone) {
                        (RelayKind::Rtpproxy, false) => b"3600 7 7 14 0",
                        (RelayKind::Rtpproxy, true) => b"E50",
                        (RelayKind::Rtpengine, false) => b"d4:tagsde6:result2:oke",
                        (RelayKind::Rtpengine, true) => b"d6:result5:error12:error-reason15:Unknown call-ide",
                    };
                    return self.book.relay_replied(self.now, line, purpose, &command, Some(reply));
                }
            }
            Decision::Notify { message, .. } => self.notified.push(message),
            Decision::Ended(ended) => {
                self.ended.push(ended.reason);
                self.calls.push(*ended);
            }
            Decision::Learned { verdict, .. } => self.verdicts.push(verdict),
            Decision::Happened { what, .. } => self.happened.push(what),
            Decision::Changed {
                stream,
                state: State::Offloaded,
                after,
                ..
            } => self.offloads.push((stream, after)),
            Decision::Store(_) => self.stored += 1,
            _ => {}
        }
        Vec::new()
    }

    fn idle(&self, key: &FiveTuple) -> Duration {
        let met = self.met.get(key).copied().or(self.silent_since);
        met.map_or(Duration::ZERO, |since| self.now.since(since))
    }

    pub fn before(&mut self, text: &str) -> (Step, Option<Refusal>) {
        let command = Command::parse(text.as_bytes()).unwrap();
        let (step, refusal, decisions) = self.book.command(self.now, &command);
        self.carry_out(decisions);
        (step, refusal)
    }

    pub fn after(&mut self, text: &str, reply: &str) -> Result<(), PortHeld> {
        let command = Command::parse(text.as_bytes()).unwrap();
        let decisions = self.book.replied(self.now, None, self.relay, &command, Some(reply.as_bytes()))?;
        self.carry_out(decisions);
        Ok(())
    }

    /// A command with its reply.
    pub fn say(&mut self, text: &str, reply: &str) {
        if let (Step::Pass { .. }, _) = self.before(text) {
            let _ = self.after(text, reply);
        }
    }

    /// A call whose callee sends to this port, and whose caller to the one two above.
    pub fn call(&mut self, call_id: &str, port: u16) {
        self.say(&format!("Uc0 {call_id} 10.1.0.2 6000 a;1"), &format!("{port} 10.9.0.1"));
        self.say(&format!("Lc0 {call_id} 10.2.0.2 7000 a;1 b;1"), &format!("{} 10.9.0.1", port + 2));
    }

    pub fn packet(&mut self, source: &str, port: &str, ssrc: u32) {
        self.number += 1;
        let notice = Notice {
            key: FiveTuple::new(end(source), end(port)),
            media: Some(Source {
                ssrc,
                sequence: self.number,
            }),
            payload_type: Some(0),
        };
        let decisions = self.book.noticed(self.now, &notice);
        self.carry_out(decisions);
    }

    /// RTP of both parties.
    pub fn talk(&mut self, port: u16) {
        self.packet("10.1.0.2:6000", &format!("10.9.0.1:{}", port + 2), 1);
        self.packet("10.2.0.2:7000", &format!("10.9.0.1:{port}"), 2);
    }

    pub fn rtcp(&mut self, port: u16) {
        self.packet("10.1.0.2:6001", &format!("10.9.0.1:{}", port + 3), 1);
        self.packet("10.2.0.2:7001", &format!("10.9.0.1:{}", port + 1), 2);
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.now = self.now + Duration::from_millis(milliseconds);
        if !self.reported
            && self
                .silent_since
                .is_some_and(|since| self.now.since(since) >= Duration::from_secs(30))
        {
            self.reported = true;
            let keys: Vec<FiveTuple> = self.held.values().map(RelayEntry::key).collect();
            for key in keys {
                let decisions = self.book.idle(self.now, key);
                self.carry_out(decisions);
            }
        }
        let decisions = self.book.tick(self.now, usize::MAX);
        self.carry_out(decisions);
    }

    pub fn line(&self, call_id: &str) -> LineView<'_> {
        self.book.lines_of_call(call_id.as_bytes()).next().unwrap()
    }

    pub fn reason(&self, call_id: &str, sender: Side) -> Reason {
        self.line(call_id).stream(sender, Component::Rtp).reason
    }

    pub fn learned(&self, call_id: &str, side: Side) -> Option<Endpoint> {
        self.line(call_id).leg(side).learned
    }
}
