//! Sender reports of several senders in the edge's own clock, so that audio and video of one sender stay in sync.

use crate::numbers::ticks;
use std::collections::HashMap;
use std::time::Duration;

/// Most remembered streams and senders.
const MOST: usize = 256;
/// Seconds from 1900 to 1970.
const EPOCH: u64 = 2_208_988_800;
/// Media was sampled before its packet came, so the edge's clock is set back by this time for all streams of a sender.
pub const BEHIND: Duration = Duration::from_secs(1);

/// Returns the time since 1970 as an NTP timestamp.
#[must_use]
pub fn ntp_of_unix(time: Duration) -> u64 {
    let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
    (time.as_secs() + EPOCH) << 32 | fraction
}

/// A sender report and its sender.
#[derive(Clone, Debug, Default)]
struct Report {
    ntp: u64,
    rtp: u32,
    cname: Option<String>,
    /// CNAME of its sender.
    offset: Option<i128>,
}

/// The senders' clocks, from sender reports.
#[derive(Debug, Default)]
pub struct Presentation {
    reports: HashMap<u32, Report>,
    /// For each sender the edge's time minus the sender's, in nanoseconds, by its first report.
    offsets: HashMap<String, i128>,
}

fn nanoseconds(ntp: u64) -> i128 {
    i128::from(ntp >> 32) * 1_000_000_000 + i128::from(((ntp & 0xFFFF_FFFF) * 1_000_000_000) >> 32)
}

impl Presentation {
    /// Processes a sender report.
    pub fn report(&mut self, now: Duration, ssrc: u32, ntp: u64, rtp: u32) {
        if self.reports.len() >= MOST && !self.reports.contains_key(&ssrc) {
            self.reports.clear();
        }
        let report = self.reports.entry(ssrc).or_default();
        (report.ntp, report.rtp) = (ntp, rtp);
        self.set_offset(now, ssrc);
    }

    /// Records the canonical name of an SSRC's sender.
    pub fn cname(&mut self, now: Duration, ssrc: u32, cname: &str) {
        if let Some(report) = self.reports.get_mut(&ssrc)
            && report.cname.as_deref() != Some(cname)
        {
            report.cname = Some(cname.to_owned());
            self.set_offset(now, ssrc);
        }
    }

    /// Returns the canonical name, if known.
    #[must_use]
    pub fn cname_of(&self, ssrc: u32) -> Option<&str> {
        self.reports.get(&ssrc)?.cname.as_deref()
    }

    fn set_offset(&mut self, now: Duration, ssrc: u32) {
        let Some(report) = self.reports.get_mut(&ssrc) else { return };
        let Some(cname) = &report.cname else { return };
        if self.offsets.len() >= MOST && !self.offsets.contains_key(cname) {
            self.offsets.clear();
        }
        let Ok(begun) = i128::try_from(now.saturating_sub(BEHIND).as_nanos()) else {
            return;
        };
        let first = begun - nanoseconds(report.ntp);
        report.offset = Some(*self.offsets.entry(cname.clone()).or_insert(first));
    }

    /// Returns when a packet's content was sampled, in the edge's time; `None` before its sender's report and name are known.
    pub fn sampled(&self, now: Duration, ssrc: u32, timestamp: u32, clock_rate: u32) -> Option<Duration> {
        let report = self.reports.get(&ssrc)?;
        // 31 bits and the sign: it fits.
        let after = ticks(timestamp, report.rtp) * 1_000_000_000 / i64::from(clock_rate.max(1));
        let time = nanoseconds(report.ntp) + i128::from(after) + report.offset?;
        let time = Duration::from_nanos(u64::try_from(time).ok()?);
        // A report of another clock is ignored.
        (time <= now && now.saturating_sub(time) < Duration::from_secs(30)).then_some(time)
    }
}
