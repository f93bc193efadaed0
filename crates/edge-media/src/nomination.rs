//! Which pair of addresses media takes: the one that the newest nominating check came by (RFC 8445 section 8.1.1), as with any NAT that gives
//! a browser another port.

use crate::user::nomination;
use std::collections::VecDeque;

/// Checks whose transaction is remembered. A browser sends at most 20 a second.
const REMEMBERED: usize = 256;

/// The nominated pair. Takes only checks whose integrity has been verified.
#[derive(Debug)]
pub struct Nominated<P> {
    pair: Option<P>,
    seen: VecDeque<([u8; 12], P)>,
}

impl<P> Default for Nominated<P> {
    fn default() -> Self {
        Self {
            pair: None,
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

    /// Media goes by `pair` from now on: the browser has answered a check of the edge's own there.
    pub fn take(&mut self, pair: P) {
        self.pair = Some(pair);
    }

    /// Takes a verified connectivity check that came by `pair`. Returns whether media goes another way from now on.
    ///
    /// A check that came by another pair before is a copy of it, which shows nobody's address: checks have no protection from replay.
    pub fn check(&mut self, packet: &[u8], pair: P) -> bool {
        let Some(transaction) = nomination(packet) else {
            return false;
        };
        match self.seen.iter().find(|(one, _)| *one == transaction) {
            Some((_, first)) if *first != pair => return false,
            Some(_) => {}
            None => {
                if self.seen.len() == REMEMBERED {
                    self.seen.pop_front();
                }
                self.seen.push_back((transaction, pair));
            }
        }
        let changed = self.pair != Some(pair);
        self.pair = Some(pair);
        changed
    }
}
