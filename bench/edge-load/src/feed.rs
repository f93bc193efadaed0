//! What a browser sends: RTP at a steady rate, in frames.

use crate::sender::TIME_AT;
use serde::Deserialize;
use std::time::Instant;
use str0m::Rtc;
use str0m::media::Mid;
use str0m::rtp::RtpWrite;

/// How much, how often.
#[derive(Clone, Deserialize)]
pub struct Rate {
    /// Octets of payload.
    size: usize,
    /// Packets a second.
    rate: f64,
    /// Packets of a frame: they leave one after the other.
    burst: u64,
    /// Timestamp units of a frame.
    step: u32,
    /// What the payload begins with.
    head: Vec<u8>,
}

pub struct Feed {
    rate: Rate,
    mid: Mid,
    began: Instant,
    next: u64,
}

impl Feed {
    pub fn new(rate: Rate, mid: Mid) -> Self {
        Self {
            rate,
            mid,
            began: Instant::now(),
            next: 0,
        }
    }

    /// Give the browser the frames that are due; whether there were any. `start`: from which on times of sending count.
    pub fn send(&mut self, rtc: &mut Rtc, start: Instant) -> bool {
        let Rate {
            size,
            rate,
            burst,
            step,
            ref head,
        } = self.rate;
        let burst = burst.max(1);
        // Rates of a bench fit.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let due = (self.began.elapsed().as_secs_f64() * rate) as u64 / burst * burst;
        let Some(pt) = rtc.media(self.mid).and_then(|media| media.remote_pts().first().copied()) else {
            return false;
        };
        let busy = self.next < due;
        while self.next < due {
            let mut payload = vec![0; size.max(TIME_AT + 8)];
            payload[..head.len()].copy_from_slice(head);
            // Until 584 years after the start.
            #[allow(clippy::cast_possible_truncation)]
            let time = start.elapsed().as_nanos() as u64;
            payload[TIME_AT..TIME_AT + 8].copy_from_slice(&time.to_be_bytes());
            // Timestamps wrap.
            #[allow(clippy::cast_possible_truncation)]
            let timestamp = ((self.next / burst) as u32).wrapping_mul(step);
            let packet = RtpWrite::new(pt, self.next.into(), timestamp, Instant::now(), payload);
            let mut api = rtc.direct_api();
            let Some(stream) = api.stream_tx_by_mid(self.mid, None) else {
                return false;
            };
            stream.write_rtp(packet.marker(self.next % burst == burst - 1).nackable(true));
            self.next += 1;
        }
        busy
    }
}
