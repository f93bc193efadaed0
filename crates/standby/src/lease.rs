//! The lease of one agent: what to ask the store, and what follows from its answers.
//!
//! All times are of one clock that never goes back, from any beginning. The holder counts its lease from before it asked, so a process that was
//! stopped or cut off knows on waking that it is late.

use crate::holder::Holder;
use std::time::Duration;

/// How long an agent that was cut off from the store waits for another one to give the lease back.
pub const UNDECIDED: Duration = Duration::from_secs(8);
/// How often a lease is renewed in its time.
const RENEWALS: u32 = 4;
/// The share of the lease that is left to clocks of different speeds and to a write that is under way: a tenth.
const MARGIN: u32 = 10;
/// After a lease has run out the store is asked so much later.
const AFTER: Duration = Duration::from_millis(2);

/// A question to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Who has the lease? Granted where nobody has it, or who has it is known to be dead.
    Take {
        /// Otherwise it is only looked at.
        may_take: bool,
        /// A token that is known to have been granted, in case the store was emptied.
        least: u64,
        /// The text of a lease whose holder is known to be dead.
        instead_of: Option<String>,
        /// Leave a store alone that was emptied: the agent in charge comes first.
        spare_emptied: bool,
    },
    /// Extend the lease that was granted with this token.
    Renew { token: u64, text: String },
}

/// What the store answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted {
        token: u64,
        text: String,
    },
    /// Somebody has it.
    Held {
        text: String,
        /// Until it runs out.
        left: Duration,
    },
    /// Nobody has it, and it was not granted.
    Free,
    Renewed,
    /// Another agent has been granted it since.
    Another,
    /// The store has forgotten all tokens.
    Emptied,
    /// None, or an error.
    Failed,
}

/// Why everything has to be written to the store again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAgain {
    Emptied,
    CutOff,
}

/// What an answer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// This agent is in charge.
    Granted,
    /// It still is, with another token.
    WriteAgain(WriteAgain),
    /// Another agent is in charge.
    Lost,
    StoreFailed,
    StoreAnswers,
}

/// What the lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// This agent alone is in charge before that time.
    pub until: Duration,
    /// The store does not say who is in charge.
    pub undecided: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Holding,
    /// Another one was granted the lease, or the store was emptied, while this agent could not reach it.
    CutOff {
        since: Duration,
        why: WriteAgain,
    },
    Lost,
}

/// One agent's claim.
#[derive(Clone, Debug)]
pub struct Lease {
    length: Duration,
    phase: Phase,
    store_down: bool,
    /// The lease as it was last read or granted, and its token; 0: none was.
    text: String,
    token: u64,
    holder: Option<Holder>,
    /// When somebody else was last seen to hold it, and for how long from then on.
    seen: Option<(Duration, Duration)>,
    until: Duration,
    /// Until then the holder comes first: nobody could renew while the store did not answer.
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

    /// Who was last seen to hold it; `None`: nobody, or this agent.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Of the lease that was granted last.
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

    /// The store has answered what was asked at `asked`.
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
            // Answers to another question.
            (Phase::Holding | Phase::CutOff { .. }, _) => Change::None,
        }
    }

    /// This agent's lease is another's, as its own writes have shown or it has given it back itself.
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
