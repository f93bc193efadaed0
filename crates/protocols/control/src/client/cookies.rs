//! Cookies of one client.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// These cookies begin with a letter, SIP servers' with a process id. The random part keeps a restarted agent from the replies to its
/// predecessor's commands, and two agents in front of one relay from each other's replies.
pub struct Cookies {
    prefix: String,
    next: AtomicU64,
}

impl Cookies {
    pub fn new() -> Self {
        let mut random = [0; 8];
        // Without random numbers cookies are still unique within this process.
        let _ = getrandom::fill(&mut random);
        Self {
            prefix: format!("s{:x}.", u64::from_ne_bytes(random)),
            next: AtomicU64::new(1),
        }
    }

    /// The number of a command.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Returns the cookie of the command with this number.
    pub fn cookie(&self, number: u64) -> String {
        format!("{}{number:x}", self.prefix)
    }

    /// Returns the number of the command with this cookie.
    pub fn parse(&self, cookie: &[u8]) -> Option<u64> {
        let number = std::str::from_utf8(cookie.strip_prefix(self.prefix.as_bytes())?).ok()?;
        u64::from_str_radix(number, 16).ok()
    }
}
