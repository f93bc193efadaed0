//! What the feedback of 250 rooms of ten costs: every receiver's RR and REMB of nine senders five times a second, its audio report each second,
//! and each sender's SR and SDES once a second for nine receivers. Prints the processor time of one second of it.

use shunt_conference::adaptation::{Adaptation, Decision, Feedback, Medium, Streams};
use shunt_conference::policy::Stepwise;
use shunt_conference::reports::{for_receivers, requests};
use shunt_conference::tables::Name;
use shunt_latch::Time;
use shunt_rtp::rtcp::{Report, nack, receiver_report, remb};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const ROOMS: usize = 250;
const PEOPLE: usize = 10;
const SECONDS: usize = 40;
const PER_SECOND: usize = 5;
const RATES: [f64; 3] = [190e3, 350e3, 610e3];

#[derive(Default)]
struct Room {
    adaptation: Adaptation,
    levels: HashMap<(Name, Name), usize>,
}

struct Known<'a>(&'a HashMap<(Name, Name), usize>);

impl Streams for Known<'_> {
    fn rates(&self, _: &Name, medium: Medium) -> &[f64] {
        if medium == Medium::Video { &RATES } else { &[] }
    }
    fn level(&self, sender: &Name, _: Medium, receiver: &Name) -> Option<usize> {
        self.0.get(&(sender.clone(), receiver.clone())).copied()
    }
    fn needs_key_frame(&self, _: &Name, _: Medium) -> bool {
        true
    }
}

fn compound(ssrcs: &[u32], bitrate: u64, lost: u8) -> Vec<u8> {
    let block = |ssrc: &u32| Report {
        ssrc: *ssrc,
        fraction_lost: lost,
        cumulative_lost: 0,
        highest_sequence: 1,
        jitter: 1,
        lsr: 0,
        dlsr: 0,
    };
    let mut packet = receiver_report(7, &ssrcs.iter().map(block).collect::<Vec<_>>());
    packet.extend(remb(7, bitrate, ssrcs).unwrap_or_default());
    packet.extend(nack(7, ssrcs[0], [1, 2]).unwrap_or_default());
    packet
}

fn main() {
    let people: Vec<Name> = (0..PEOPLE).map(|n| Name::from(format!("participant-{n}"))).collect();
    let mut rooms: Vec<Room> = (0..ROOMS).map(|_| Room::default()).collect();
    let mut report = vec![0x80, 200, 0, 6];
    report.extend([1; 24]);
    let (mut forwarded, mut changes, mut packets) = (0usize, 0usize, 0usize);
    let began = Instant::now();
    for tick in 0..SECONDS * PER_SECOND {
        let now = Time::from(Duration::from_millis(1000 / PER_SECOND as u64) * tick as u32);
        for room in &mut rooms {
            for (at, receiver) in people.iter().enumerate() {
                let others = people.iter().enumerate().filter(|(other, _)| *other != at);
                let streams: Vec<(u32, Name)> = others.map(|(other, sender)| (100 + other as u32, sender.clone())).collect();
                let ssrcs: Vec<u32> = streams.iter().map(|(ssrc, _)| *ssrc).collect();
                // A third of them have narrow downlinks.
                let bitrate = if at % 3 == 0 { 2_500_000 } else { 8_000_000 };
                for medium in [Medium::Video, Medium::Audio] {
                    if medium == Medium::Audio && tick % PER_SECOND != 0 {
                        continue;
                    }
                    let packet = compound(&ssrcs, bitrate, 1);
                    let feedback = Feedback {
                        receiver,
                        medium,
                        transport: 0,
                        streams: &streams,
                        packet: &packet,
                    };
                    packets += 1 + requests(&packet).map_or(0, |found| found.len());
                    let made = room
                        .adaptation
                        .take(&feedback, &Known(&room.levels), &Stepwise, now)
                        .unwrap_or_default();
                    for decision in made {
                        match decision {
                            Decision::Forward { packet, .. } => forwarded += packet.len().min(1),
                            Decision::Level {
                                sender, receiver, level, ..
                            } => {
                                changes += 1;
                                room.levels.insert((sender, receiver), level);
                            }
                            _ => {}
                        }
                    }
                }
                if tick % PER_SECOND == 0 {
                    forwarded += 9 * for_receivers(&report, |_| true).map_or(0, |out| out.len().min(1));
                }
            }
        }
    }
    let spent = began.elapsed().as_secs_f64() / SECONDS as f64;
    println!(
        "{ROOMS} rooms of {PEOPLE}: {:.1} ms of processor time a second ({packets} items in, {forwarded} packets on, {changes} changes)",
        1000.0 * spent
    );
}
