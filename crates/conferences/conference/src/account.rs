//! Sums of the data plane's counters for one leg.

use serde::{Deserialize, Serialize};
use shunt_admin_model::Usage;
use shunt_calls::Counters;

/// Counters of removed rows, summed for one leg.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Account {
    usage: Usage,
    /// Whether every reading is included.
    complete: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            usage: Usage::default(),
            complete: true,
        }
    }
}

impl Account {
    /// Adds the counters of a row; `None` marks the sums as incomplete.
    pub fn add(&mut self, counted: Option<Counters>) {
        let Some(counted) = counted else {
            self.complete = false;
            return;
        };
        let usage = &mut self.usage;
        usage.rows += 1;
        usage.packets += counted.packets;
        usage.bytes += counted.bytes;
        let Some(lost) = counted.lost.filter(|_| counted.packets > 0) else {
            return;
        };
        if let Some(jitter) = counted.jitter_us {
            let (jitter, before) = (f64::from(jitter) / 1000.0, usage.measured as f64);
            let sum = usage.jitter_ms.unwrap_or(0.0) * before + jitter * counted.packets as f64;
            usage.jitter_ms = Some(sum / (before + counted.packets as f64));
            usage.jitter_max_ms = Some(usage.jitter_max_ms.unwrap_or(0.0).max(jitter));
        }
        usage.measured += counted.packets;
        usage.lost += lost;
        usage.reordered += counted.reordered.unwrap_or(0);
        usage.duplicates += counted.duplicates.unwrap_or(0);
    }

    /// Returns the sums; `None` if a reading is missing.
    #[must_use]
    pub fn told(&self) -> Option<Usage> {
        self.complete.then_some(self.usage)
    }
}

/// Returns the counts since `base`, or the full counts if the row's counters have restarted.
#[must_use]
pub fn since(now: Counters, base: Option<&Counters>) -> Counters {
    let Some(base) = base.filter(|base| base.packets <= now.packets) else {
        return now;
    };
    let less = |now: Option<u64>, base: Option<u64>| now.map(|now| now.saturating_sub(base.unwrap_or(0)));
    Counters {
        packets: now.packets - base.packets,
        bytes: now.bytes.saturating_sub(base.bytes),
        lost: less(now.lost, base.lost),
        reordered: less(now.reordered, base.reordered),
        duplicates: less(now.duplicates, base.duplicates),
        jitter_us: now.jitter_us,
        jitter_max_us: None,
    }
}

/// Returns a copy's counters, without the fields that only apply to a stream's reception.
#[must_use]
pub fn plain(counted: Counters) -> Counters {
    Counters {
        packets: counted.packets,
        bytes: counted.bytes,
        ..Counters::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn counters(packets: u64, lost: Option<u64>, jitter_us: Option<u32>) -> Counters {
        Counters {
            packets,
            bytes: packets * 200,
            lost,
            reordered: lost.map(|_| 0),
            duplicates: lost.map(|_| 0),
            jitter_us,
            jitter_max_us: None,
        }
    }

    #[test]
    fn rows_are_summed_and_jitter_is_weighted_by_packets() {
        let mut account = Account::default();
        account.add(Some(counters(100, Some(3), Some(2000))));
        account.add(Some(counters(300, Some(1), Some(6000))));
        account.add(Some(counters(50, None, None)));
        let usage = account.told().unwrap();
        assert_eq!((usage.rows, usage.packets, usage.measured, usage.lost), (3, 450, 400, 4));
        assert_eq!((usage.jitter_ms, usage.jitter_max_ms), (Some(5.0), Some(6.0)));
    }

    #[test]
    fn a_lost_reading_leaves_no_figure_that_is_too_small() {
        let mut account = Account::default();
        account.add(Some(counters(100, None, None)));
        account.add(None);
        assert_eq!(account.told(), None);
    }

    #[test]
    fn a_row_that_had_counted_for_others_counts_from_there_and_one_that_begins_anew_from_0() {
        let base = counters(40, Some(2), None);
        assert_eq!(since(counters(100, Some(5), None), Some(&base)).packets, 60);
        assert_eq!(since(counters(100, Some(5), None), Some(&base)).lost, Some(3));
        assert_eq!(since(counters(10, Some(0), None), Some(&base)).packets, 10);
    }
}
