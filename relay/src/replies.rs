//! Replies to commands that were sent again.

use shunt_latch::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// rtpproxy's cookie cache lives as long.
const KEPT: Duration = Duration::from_secs(35);
const MOST: usize = 100_000;

/// The sender, the cookie and the text of a command as two independent hashes of it: nobody finds two commands with the same ones.
type Key = (u64, u64);

/// The retransmission cache: a command with the same sender, cookie and text gets its first reply and is not executed again.
#[derive(Debug, Default)]
pub struct Replies {
    hashers: [RandomState; 2],
    replies: HashMap<Key, Vec<u8>>,
    ages: VecDeque<(Time, Key)>,
}

impl Replies {
    #[must_use]
    pub fn key(&self, peer: Option<IpAddr>, cookie: &[u8], body: &[u8]) -> Key {
        let hash = |hasher: &RandomState| hasher.hash_one((peer, cookie, body));
        (hash(&self.hashers[0]), hash(&self.hashers[1]))
    }

    pub fn get(&mut self, now: Time, key: Key) -> Option<&[u8]> {
        self.expire(now);
        self.replies.get(&key).map(Vec::as_slice)
    }

    pub fn keep(&mut self, now: Time, key: Key, reply: Vec<u8>) {
        while self.replies.len() >= MOST {
            let Some((_, oldest)) = self.ages.pop_front() else { break };
            self.replies.remove(&oldest);
        }
        if self.replies.insert(key, reply).is_none() {
            self.ages.push_back((now, key));
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some((kept, key)) = self.ages.front() {
            if now.since(*kept) < KEPT {
                break;
            }
            self.replies.remove(key);
            self.ages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_kept_35_s_and_not_more_than_so_many() {
        let (mut replies, at) = (Replies::default(), |s: u64| Time::from(Duration::from_secs(s)));
        let key = replies.key(None, b"k", b"V");
        assert_eq!(key, replies.key(None, b"k", b"V"));
        assert_ne!(key, replies.key(None, b"kV", b""));
        assert_ne!(key, replies.key(Some([127, 0, 0, 1].into()), b"k", b"V"));
        replies.keep(at(0), key, b"first".to_vec());
        assert_eq!(replies.get(at(34), key), Some(&b"first"[..]));
        assert_eq!(replies.get(at(34), (0, 0)), None);
        assert_eq!(replies.get(at(35), key), None);
        for n in 0..MOST as u64 + 10 {
            replies.keep(at(40), (n, n), Vec::new());
        }
        assert_eq!((replies.replies.len(), replies.ages.len()), (MOST, MOST));
        assert!(replies.get(at(41), (9, 9)).is_none() && replies.get(at(41), (10, 10)).is_some());
        replies.expire(at(100));
        assert_eq!((replies.replies.len(), replies.ages.len()), (0, 0));
    }
}
