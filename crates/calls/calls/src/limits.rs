//! Limits on new sessions.

use crate::recent::Recent;
use crate::settings::Rate;
use shunt_latch::Time;
use shunt_rtpproxy::ErrorCode;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

/// Sources that are told apart, in each of two generations.
const MOST_SOURCES: usize = 20_000;

/// Why a command is answered with an error here, and is not for the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("one Call-ID has {0} legs")]
    LegsOfCall(usize),
    #[error("{0} begins sessions faster than its limit")]
    SessionsOfSource(IpAddr),
}

impl Refusal {
    /// The number in the error reply, which no relay has: E90 legs of one Call-ID, E91 new sessions of one source. Neither is one of E7 to E10, for
    /// which OpenSIPS would give the relay up.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        ErrorCode(match self {
            Self::LegsOfCall(_) => 90,
            Self::SessionsOfSource(_) => 91,
        })
    }
}

/// The rate of new sessions of each source (generic cell rate algorithm, ITU-T I.371).
#[derive(Clone, Debug)]
pub(crate) struct SourceRates {
    /// When the next session of a source would be due if all were evenly spaced.
    due: Recent<IpAddr, Time>,
}

impl SourceRates {
    pub(crate) fn new() -> Self {
        Self {
            due: Recent::new(MOST_SOURCES),
        }
    }

    /// One more session; false if that is one too many, which does not count.
    pub(crate) fn admit(&mut self, now: Time, source: IpAddr, rate: Rate) -> bool {
        let spacing = Duration::from_secs(1) / rate.per_second.max(1);
        let due = self.due.entry(source, || now);
        let next = (*due).max(now);
        if next.since(now) > spacing * rate.burst.saturating_sub(1) {
            return false;
        }
        *due = next + spacing;
        true
    }
}
