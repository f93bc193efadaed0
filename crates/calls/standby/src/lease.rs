//! The lease of one agent: what to ask the store, and what its answers imply.
//!
//! All times are of one monotonic clock with any origin. The holder counts its lease from before the request. A process that was stopped or
//! cut off therefore knows on waking that its lease has expired.

use crate::holder::Holder;
use std::time::Duration;

/// How long an agent that was cut off from the store waits for another one to return the lease.
pub const UNDECIDED: Duration = Duration::from_secs(8);
/// Renewals in one period of the lease.
const RENEWALS: u32 = 4;
/// The share of the lease reserved for clock drift and for a write in progress: a tenth.
const MARGIN: u32 = 10;
/// How long after the lease's expiry the store is asked again.
const AFTER: Duration = Duration::from_millis(2);

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Asks who has the lease. The store grants it if no agent has it, or if its holder is known to be dead.
    Take {
        /// If false, the store only tells who has it.
        may_take: bool,
        /// A token that is known to have been granted, in case the store lost its data.
        least: u64,
        /// The text of a lease whose holder is known to be dead.
        instead_of: Option<String>,
        /// Requests nothing from a store that lost its data: the active agent comes first.
        spare_emptied: bool,
    },
    /// Extends the lease that was granted with this token.
    Renew { token: u64, text: String },
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted {
        token: u64,
        text: String,
    },
    /// An agent has it.
    Held {
        text: String,
        /// Time until it expires.
        left: Duration,
    },
    /// No agent has it, and it was not granted.
    Free,
    Renewed,
    /// Another agent has been granted it since.
    Another,
    /// The store has lost all tokens.
    Emptied,
    /// No answer, or an error.
    Failed,
}

/// Why everything must be written to the store again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAgain {
    Emptied,
    CutOff,
}

/// What changed with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// This agent is active.
    Granted,
    /// It is still active, with another token.
    WriteAgain(WriteAgain),
    /// Another agent is active.
    Lost,
    StoreFailed,
    StoreAnswers,
}

/// What the lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Until that time only this agent is active.
    pub until: Duration,
    /// The store does not tell who is active.
    pub undecided: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Holding,
    /// Another agent was granted the lease, or the store lost its data, while this agent could not reach it.
    CutOff {
        since: Duration,
        why: WriteAgain,
    },
    Lost,
}

/// One agent's state of the lease.
#[derive(Clone, Debug)]
pub struct Lease {
    length: Duration,
    phase: Phase,
    store_down: bool,
    /// The lease as last read or granted, and its token (0: none).
    text: String,
    token: u64,
    holder: Option<Holder>,
    /// When another agent was last seen with the lease, and for how long it had it from then on.
    seen: Option<(Duration, Duration)>,
    until: Duration,
    /// Until then the holder comes first: no agent could renew while the store did not answer.
    spared_until: Option<Duration>,
}

impl Lease {
    #[must_use]
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            phase: Phase::Waiting,
            store_down: false,
            text: String::new(),
            token: 0,
            holder: None,
            seen: None,
            until: Duration::ZERO,
            spared_until: None,
        }
    }

    /// The last known holder; `None`: no agent, or this one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Token of the lease that was granted last.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn is_store_down(&self) -> bool {
        self.store_down
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            until: self.until,
            undecided: match self.phase {
                Phase::Holding => self.store_down,
                Phase::CutOff { .. } => true,
                Phase::Waiting | Phase::Lost => false,
            },
        }
    }

    /// What to ask now. `is_dead`: the process of [`Lease::holder`] is known to have ended.
    #[must_use]
    pub fn ask(&self, now: Duration, is_dead: bool) -> Ask {
        let take = |may_take, is_dead: bool, spare_emptied| Ask::Take {
            may_take,
            least: self.token,
            instead_of: is_dead.then(|| self.text.clone()),
            spare_emptied,
        };
        match self.phase {
            Phase::Holding => Ask::Renew {
                token: self.token,
                text: self.text.clone(),
            },
            Phase::CutOff { .. } => take(true, false, false),
            Phase::Lost => take(false, false, true),
            Phase::Waiting => {
                let is_dead = is_dead && self.holder.is_some();
                let is_back = !self.store_down && self.spared_until.is_none_or(|until| until <= now);
                let is_fresh = self.seen.is_some_and(|(at, _)| now < at + 2 * self.length);
                take(is_dead || is_back || self.token == 0, is_dead, is_fresh && !is_dead)
            }
        }
    }

    /// How long to wait after an answer before asking again.
    #[must_use]
    pub fn pause(&self, now: Duration) -> Duration {
        let usual = self.length / RENEWALS;
        match (&self.phase, self.seen) {
            (Phase::Waiting, Some((at, left))) if !self.store_down => {
                (at + left + AFTER).saturating_sub(now).clamp(self.length / 50, usual)
            }
            _ => usual,
        }
    }

    /// The store answered the request that was sent at `asked`.
    pub fn answered(&mut self, asked: Duration, answer: Answer) -> Change {
        if matches!(answer, Answer::Failed) {
            return self.failed(asked);
        }
        match (self.phase.clone(), answer) {
            (Phase::Lost, _) => Change::None,
            (Phase::Holding, Answer::Renewed) => {
                self.until = self.end(asked);
                self.answers()
            }
            (Phase::Holding, Answer::Emptied) => {
                let why = WriteAgain::Emptied;
                self.phase = Phase::CutOff { since: asked, why };
                Change::None
            }
            (Phase::Holding, Answer::Another) if self.store_down => {
                let why = WriteAgain::CutOff;
                self.phase = Phase::CutOff { since: asked, why };
                Change::None
            }
            (Phase::Holding, Answer::Another) => self.lose(),
            (Phase::CutOff { why, .. }, Answer::Granted { token, text }) => {
                self.grant(asked, token, text);
                Change::WriteAgain(why)
            }
            (Phase::CutOff { since, .. }, _) if asked > since + UNDECIDED => self.lose(),
            (Phase::Waiting, Answer::Granted { token, text }) => {
                self.grant(asked, token, text);
                Change::Granted
            }
            (Phase::Waiting, answer) => {
                let is_back = self.store_down;
                match answer {
                    Answer::Held { text, left } => self.look_at(asked, text, left),
                    _ => {
                        self.seen = self
                            .seen
                            .filter(|(at, _)| asked < *at + 2 * self.length)
                            .map(|(at, _)| (at, Duration::ZERO))
                    }
                }
                if is_back && self.token > 0 {
                    self.spared_until = Some(asked + self.length);
                }
                self.answers()
            }
            // The answer belongs to another request.
            (Phase::Holding | Phase::CutOff { .. }, _) => Change::None,
        }
    }

    /// Another agent has this agent's lease, as its own writes showed, or this agent returned it.
    pub fn lose(&mut self) -> Change {
        self.phase = Phase::Lost;
        self.until = Duration::ZERO;
        self.store_down = false;
        Change::Lost
    }

    fn failed(&mut self, asked: Duration) -> Change {
        if let Phase::CutOff { since, .. } = &mut self.phase {
            *since = asked;
        }
        if std::mem::replace(&mut self.store_down, true) {
            Change::None
        } else {
            Change::StoreFailed
        }
    }

    fn answers(&mut self) -> Change {
        if std::mem::replace(&mut self.store_down, false) {
            Change::StoreAnswers
        } else {
            Change::None
        }
    }

    fn end(&self, asked: Duration) -> Duration {
        asked + self.length - self.length / MARGIN
    }

    fn grant(&mut self, asked: Duration, token: u64, text: String) {
        self.phase = Phase::Holding;
        self.until = self.end(asked);
        (self.token, self.text) = (token, text);
        self.holder = None;
        self.store_down = false;
    }

    fn look_at(&mut self, asked: Duration, text: String, left: Duration) {
        if let Some((holder, token)) = Holder::read(&text) {
            self.token = self.token.max(token);
            self.holder = Some(holder);
        }
        self.text = text;
        self.seen = Some((asked, left));
    }
}
