//! Streams of ended calls: their phones may still send, and the relay may give the ports out again.

use crate::ids::LineId;
use shunt_latch::{Component, Former, Time};
use shunt_net::Endpoint;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The former streams of relay ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormerStreams {
    by_port: HashMap<Endpoint, (LineId, Former, Time)>,
    order: VecDeque<(Time, Endpoint)>,
}

impl FormerStreams {
    pub(crate) fn add(&mut self, now: Time, hold: Duration, port: Endpoint, line: LineId, former: Former) {
        self.expire(now);
        self.by_port.insert(port, (line, former, now + hold));
        self.order.push_back((now + hold, port));
    }

    fn expire(&mut self, now: Time) {
        while let Some((until, port)) = self.order.front().copied().filter(|(until, _)| *until <= now) {
            self.order.pop_front();
            if self.by_port.get(&port).is_some_and(|(.., kept)| *kept == until) {
                self.by_port.remove(&port);
            }
        }
    }

    /// Takes the stream that another line had at a port, for the line that has the port now. Returns `None` for a port that returns to its
    /// own line.
    pub(crate) fn take(&mut self, now: Time, port: Endpoint, line: LineId) -> Option<Former> {
        self.expire(now);
        let (owner, former, _) = self.by_port.remove(&port)?;
        (owner != line).then_some(former)
    }

    /// Returns whether a packet to a port without a call continues the port's former stream, and notes its sequence number if so.
    pub(crate) fn goes_on(
        &mut self,
        now: Time,
        port: Endpoint,
        source: Endpoint,
        media: Option<shunt_rtp::Source>,
        component: Component,
    ) -> bool {
        self.expire(now);
        let Some((_, former, _)) = self.by_port.get_mut(&port) else {
            return false;
        };
        let same = match (former.media, media) {
            (Some(known), Some(media)) => known.ssrc == media.ssrc,
            _ => former.source == source,
        };
        if let (true, Some(media), Component::Rtp) = (same, media, component) {
            (former.media, former.last) = (Some(media), now);
        }
        same || former.source == source
    }

    pub(crate) fn len(&self) -> usize {
        self.by_port.len()
    }
}
