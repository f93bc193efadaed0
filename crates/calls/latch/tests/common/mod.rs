//! A stream, its phones and its attackers on a simulated time line.
#![allow(dead_code)]

use shunt_latch::{Component, Facts, Latch, Learner, Name, Names, Packet, Policy, Time, Verdict};
use shunt_net::Endpoint;
use shunt_rtp::Source;
use std::time::Duration;

pub const PORT: u16 = 36_000;

pub fn ms(milliseconds: u64) -> Time {
    Time::from(Duration::from_millis(milliseconds))
}

pub fn at(address: [u8; 4], port: u16) -> Endpoint {
    Endpoint::new(address, port)
}

pub const PHONE: [u8; 4] = [192, 0, 2, 10];
pub const STRANGER: [u8; 4] = [198, 51, 100, 66];

pub fn rtp(time: u64, source: Endpoint, ssrc: u32, sequence: u16) -> Packet {
    Packet {
        at: ms(time),
        source,
        media: Some(Source { ssrc, sequence }),
    }
}

/// A relay's port: it sees every packet, and so knows when the latched source's last packet came.
pub struct Port {
    pub learner: Learner,
    pub latch: Latch,
    pub last_packet: Time,
    /// The time of the latest packet.
    pub now: Time,
}

impl Port {
    pub fn new(names: &[Name]) -> Self {
        Self::with(Policy::default(), names)
    }

    pub fn with(policy: Policy, names: &[Name]) -> Self {
        let learner = Learner::new(policy);
        let latch = learner.latch(ms(0), Component::Rtp, names.iter().copied().collect::<Names>());
        Self {
            learner,
            latch,
            last_packet: ms(0),
            now: ms(0),
        }
    }

    pub fn packet(&mut self, packet: &Packet) -> Verdict {
        self.now = packet.at;
        let facts = Facts {
            last_packet: self.last_packet,
            sequence: None,
        };
        let verdict = self.learner.observe(&mut self.latch, false, PORT, packet, Some(facts));
        if verdict.is_held() {
            self.last_packet = packet.at;
        }
        verdict
    }

    pub fn rtp(&mut self, time: u64, source: Endpoint, ssrc: u32, sequence: u16) -> Verdict {
        self.packet(&rtp(time, source, ssrc, sequence))
    }

    /// `count` packets, one each 20 ms; the verdicts.
    pub fn talk(&mut self, from: u64, source: Endpoint, ssrc: u32, sequence: u16, count: u16) -> Vec<Verdict> {
        (0..count)
            .map(|n| self.rtp(from + 20 * u64::from(n), source, ssrc, sequence.wrapping_add(n)))
            .collect()
    }

    pub fn learned(&self) -> Option<Endpoint> {
        self.latch.learned()
    }

    /// A scanner's round over ports that no call has, 1 ms for each.
    pub fn scan(&mut self, time: u64, source: Endpoint, ports: u16) {
        for n in 0..ports {
            let _ = self.learner.missed(ms(time + u64::from(n)), source, 40_000 + 2 * n);
        }
    }
}
