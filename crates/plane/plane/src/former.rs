//! Media ranges of a former configuration. Pure.

use crate::event::FormerMedia;
use shunt_net::Endpoint;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Known {
    media: FormerMedia,
    /// Whether the data plane has it.
    present: bool,
    /// The first of the latest audits that found no entry in it.
    empty_since: Option<Instant>,
}

/// The ranges that this process has found. A removed range stays known: a call there that was held may be offloaded again.
#[derive(Debug, Default)]
pub(crate) struct Former {
    list: Vec<Known>,
}

impl Former {
    /// Records which former ranges the data plane has.
    pub(crate) fn found(&mut self, found: &[FormerMedia]) {
        for known in &mut self.list {
            known.present = false;
        }
        for media in found {
            self.list.retain(|known| known.media.range != media.range);
            self.list.push(Known {
                media: *media,
                present: true,
                empty_since: None,
            });
        }
    }

    pub(crate) fn contains(&self, port: Endpoint) -> bool {
        self.list.iter().any(|known| known.media.range.contains(port))
    }

    /// Returns the ranges to remove: those that had no port in use at each audit for `after`. `used`: ports with entries or writes.
    pub(crate) fn audited(&mut self, now: Instant, after: Duration, used: impl Iterator<Item = Endpoint> + Clone) -> Vec<FormerMedia> {
        let mut gone = Vec::new();
        for known in self.list.iter_mut().filter(|known| known.present) {
            if used.clone().any(|port| known.media.range.contains(port)) {
                known.empty_since = None;
                continue;
            }
            let since = *known.empty_since.get_or_insert(now);
            if now.duration_since(since) >= after {
                gone.push(known.media);
            }
        }
        gone
    }

    /// Records the ranges that the data plane has removed. The next audit returns the others again.
    pub(crate) fn removed(&mut self, gone: &[FormerMedia]) {
        for known in self.list.iter_mut().filter(|known| gone.contains(&known.media)) {
            known.present = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_calls::MediaRange;
    use std::net::Ipv4Addr;

    const AFTER: Duration = Duration::from_secs(60);

    fn media(first_port: u16) -> FormerMedia {
        let range = MediaRange {
            addr: Ipv4Addr::LOCALHOST.into(),
            first_port,
            last_port: first_port + 999,
        };
        FormerMedia { range, priority: 1 }
    }

    fn port(number: u16) -> Endpoint {
        Endpoint::new(Ipv4Addr::LOCALHOST, number)
    }

    #[test]
    fn a_range_is_removed_after_it_was_empty_at_all_audits_of_a_minute() {
        let start = Instant::now();
        let mut former = Former::default();
        former.found(&[media(10_000), media(20_000)]);
        let mut audit = |seconds: u64, used: &[u16]| {
            let used: Vec<Endpoint> = used.iter().copied().map(port).collect();
            former.audited(start + Duration::from_secs(seconds), AFTER, used.into_iter())
        };
        assert_eq!(audit(0, &[10_000]), []);
        assert_eq!(audit(59, &[]), []);
        assert_eq!(audit(60, &[]), [media(20_000)]);
        // A call was held, and its entry is back.
        assert_eq!(audit(118, &[10_500, 20_500]), []);
        assert_eq!(audit(130, &[]), []);
        assert_eq!(audit(189, &[]), []);
        assert_eq!(audit(190, &[]), [media(10_000), media(20_000)]);
    }

    #[test]
    fn a_removed_range_stays_known_and_a_failed_removal_is_tried_again() {
        let start = Instant::now();
        let mut former = Former::default();
        former.found(&[media(10_000), media(20_000)]);
        let audit = |former: &mut Former, seconds: u64| former.audited(start + Duration::from_secs(seconds), AFTER, std::iter::empty());
        assert_eq!(audit(&mut former, 0), []);
        assert_eq!(audit(&mut former, 60), [media(10_000), media(20_000)]);
        former.removed(&[media(10_000)]);
        assert_eq!(audit(&mut former, 61), [media(20_000)], "its removal has failed");
        former.removed(&[media(20_000)]);
        assert_eq!(audit(&mut former, 200), []);
        // A new session finds what the data plane still has.
        former.found(&[media(20_000)]);
        assert_eq!(audit(&mut former, 300), []);
        assert_eq!(audit(&mut former, 360), [media(20_000)]);
        assert!(former.contains(port(10_000)) && former.contains(port(20_000)) && !former.contains(port(30_000)));
    }
}
