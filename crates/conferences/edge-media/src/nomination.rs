//! Which pair of addresses media takes. The browser's first nomination decides (RFC 8445 section 8.1.1). Another pair must answer a check of the
//! edge's own before media moves there, because a check that was captured can be sent again from any address.

use crate::user::{binding, nominates};
use std::collections::VecDeque;
use std::time::Duration;

/// Checks whose transaction is remembered. A browser sends at most 20 a second.
const REMEMBERED: usize = 256;
/// A browser whose media came so lately has not moved: audio comes every 20 ms.
const SILENT: Duration = Duration::from_millis(60);
/// A browser checks a pair that it uses at least every 2.5 s (Chromium) or 6 s (RFC 7675), and another pair now and then.
const UNHEARD: Duration = Duration::from_secs(3);

/// What a packet means for the pair that media takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Nothing.
    Nothing,
    /// The pair is the first nominated one: media takes it.
    First,
    /// The browser nominates the pair that media takes: other pairs need no answer any more.
    Again,
    /// The browser may have moved to the pair: the edge checks it.
    Elsewhere,
}

/// The nominated pair. Takes only checks whose integrity has been verified.
#[derive(Debug)]
pub struct Nominated<P> {
    pair: Option<P>,
    /// When the browser was heard last by this pair.
    heard: Duration,
    seen: VecDeque<([u8; 12], P)>,
}

impl<P> Default for Nominated<P> {
    fn default() -> Self {
        Self {
            pair: None,
            heard: Duration::ZERO,
            seen: VecDeque::new(),
        }
    }
}

impl<P: Copy + PartialEq> Nominated<P> {
    /// The pair, once one is nominated.
    #[must_use]
    pub fn pair(&self) -> Option<P> {
        self.pair
    }

    /// Media goes by `pair` from now on: the browser has shown its key there.
    pub fn take(&mut self, now: Duration, pair: P) {
        self.pair = Some(pair);
        self.heard = now;
    }

    /// Returns whether no media has come by the pair for so long that another one may be the browser's.
    #[must_use]
    pub fn is_silent(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) >= SILENT
    }

    /// Returns whether not even a check has come by the pair for longer than a browser that uses the pair waits.
    #[must_use]
    pub fn is_unheard(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) >= UNHEARD
    }

    /// Returns whether a verified Binding request is a copy of one that came by another pair. Such a copy shows nobody's address: checks have no
    /// protection from replay.
    pub fn is_copy(&mut self, packet: &[u8], pair: P) -> bool {
        let Some(transaction) = binding(packet) else {
            return false;
        };
        if let Some((_, first)) = self.seen.iter().find(|(one, _)| *one == transaction) {
            return *first != pair;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back((transaction, pair));
        false
    }

    /// Takes a verified Binding request that is no copy. A browser checks also pairs that it does not use, so that a check which does not nominate
    /// counts only once nothing comes by the nominated pair.
    pub fn check(&mut self, now: Duration, packet: &[u8], pair: P) -> Came {
        let nominates = nominates(packet);
        match self.pair {
            None if nominates => {
                self.take(now, pair);
                Came::First
            }
            None => Came::Nothing,
            Some(current) if current == pair => {
                self.heard = now;
                if nominates { Came::Again } else { Came::Nothing }
            }
            Some(_) if nominates || self.is_unheard(now) => Came::Elsewhere,
            Some(_) => Came::Nothing,
        }
    }

    /// Takes media, or a report, that came by a pair which has shown the key.
    pub fn media(&mut self, now: Duration, pair: P) -> Came {
        if self.pair == Some(pair) {
            self.heard = now;
        } else if self.pair.is_some() && self.is_silent(now) {
            return Came::Elsewhere;
        }
        Came::Nothing
    }
}
