//! Limits on new sessions.

use crate::recent::Recent;
use crate::settings::Rate;
use shunt_latch::Time;
use shunt_rtpproxy::ErrorCode;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

/// Capacity in sources of each of two generations.
const MOST_SOURCES: usize = 20_000;

/// Why a command gets an error from the agent and does not reach the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("the Call-ID already has {0} legs")]
    LegsOfCall(usize),
    #[error("{0} exceeds its limit on new sessions")]
    SessionsOfSource(IpAddr),
}

impl Refusal {
    /// Returns the number in the error reply, which no relay uses: E90 for the legs of one Call-ID, E91 for the new sessions of one source.
    /// OpenSIPS would disable the relay on E7 to E10.
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
    /// When a source's next session would be due if all were evenly spaced.
    due: Recent<IpAddr, Time>,
}

impl SourceRates {
    pub(crate) fn new() -> Self {
        Self {
            due: Recent::new(MOST_SOURCES),
        }
    }

    /// Admits one more session of a source. Returns false for a session above the limit, which is not counted.
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
