//! Packets that are held back until their source is latched, so that a party behind a NAT loses nothing by being learned.

use super::counters::Counter;
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::collections::VecDeque;
use std::time::Duration;

/// Packets of one source; more than learning takes.
const PACKETS: usize = 8;
const SOURCES: usize = 16;
/// What is older than this is not sent after all.
const AGE: Duration = Duration::from_millis(500);
/// Bytes that one thread holds back for all of its ports.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Debug)]
struct Packet {
    at: Time,
    bytes: Box<[u8]>,
}

/// The packets held back at one port, by their sources.
#[derive(Debug, Default)]
pub struct Held {
    sources: Vec<(Endpoint, VecDeque<Packet>)>,
}

fn size(packets: &VecDeque<Packet>) -> u64 {
    packets.iter().map(|packet| packet.bytes.len() as u64).sum()
}

impl Held {
    /// Hold a packet back; the oldest makes room. `total`: bytes of all ports.
    pub fn hold(&mut self, now: Time, source: Endpoint, packet: &[u8], total: &Counter) {
        if total.get() + packet.len() as u64 > MOST_BYTES {
            return;
        }
        let place = self.sources.iter().position(|(known, _)| *known == source).unwrap_or_else(|| {
            if self.sources.len() >= SOURCES {
                self.forget_oldest(total);
            }
            self.sources.push((source, VecDeque::new()));
            self.sources.len() - 1
        });
        let packets = &mut self.sources[place].1;
        if packets.len() >= PACKETS {
            packets
                .pop_front()
                .into_iter()
                .for_each(|old| total.set(total.get() - old.bytes.len() as u64));
        }
        packets.push_back(Packet {
            at: now,
            bytes: packet.into(),
        });
        total.add(packet.len() as u64);
    }

    fn forget_oldest(&mut self, total: &Counter) {
        let last = |(_, packets): &(Endpoint, VecDeque<Packet>)| packets.back().map(|packet| packet.at);
        let oldest = (0..self.sources.len()).min_by_key(|at| last(&self.sources[*at]));
        if let Some(oldest) = oldest {
            total.set(total.get() - size(&self.sources.swap_remove(oldest).1));
        }
    }

    /// The packets of a source that is latched now, oldest first. All others are forgotten.
    pub fn release(&mut self, now: Time, source: Endpoint, total: &Counter) -> Vec<Box<[u8]>> {
        let mut released = Vec::new();
        for (known, packets) in self.sources.drain(..) {
            total.set(total.get() - size(&packets));
            if known == source {
                released = packets
                    .into_iter()
                    .filter(|packet| now.since(packet.at) <= AGE)
                    .map(|packet| packet.bytes)
                    .collect();
            }
        }
        released
    }

    /// Forget all of them.
    pub fn clear(&mut self, total: &Counter) {
        for (_, packets) in self.sources.drain(..) {
            total.set(total.get() - size(&packets));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_the_total_comes_back_to_nothing() {
        let (mut held, total) = (Held::default(), Counter::default());
        let at = |ms: u64| Time::from(Duration::from_millis(ms));
        for n in 0..40u64 {
            held.hold(at(n), Endpoint::new([10, 0, 0, 1], n as u16 % 20), &[n as u8; 100], &total);
            held.hold(at(n), Endpoint::new([10, 0, 0, 2], 1), &[n as u8; 100], &total);
        }
        assert!(held.sources.len() <= SOURCES && total.get() <= (SOURCES * PACKETS * 100) as u64);
        let released = held.release(at(40), Endpoint::new([10, 0, 0, 2], 1), &total);
        assert_eq!(
            released.iter().map(|packet| packet[0]).collect::<Vec<_>>(),
            (32..40).collect::<Vec<u8>>()
        );
        assert!(held.is_empty() && total.get() == 0);
        held.hold(at(0), Endpoint::new([10, 0, 0, 2], 1), &[1; 100], &total);
        assert!(held.release(at(501), Endpoint::new([10, 0, 0, 2], 1), &total).is_empty());
        total.set(MOST_BYTES);
        held.hold(at(0), Endpoint::new([10, 0, 0, 2], 1), &[1; 100], &total);
        assert!(held.is_empty());
    }
}
