//! Rooms: who hears whom, by tones; contributing sources, levels, speakers, keys; mixed codecs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use proptest::prelude::*;
use shunt_mix::codec::{Codec, Decoder, Encoder};
use shunt_mix::room::{Described, Format, Mix, Name, Room};
use shunt_mix::{FRAME, RATE};
use shunt_rtp::Header;
use std::collections::BTreeMap;
use std::f64::consts::TAU;

fn number(codec: Codec) -> u8 {
    match codec {
        Codec::Pcmu => 0,
        Codec::Pcma => 8,
        Codec::G722 => 9,
        Codec::Opus => 111,
    }
}

/// Opus and G.722 ring a little; a tone of somebody else's is 12 Hz or more away.
fn hz(at: usize) -> f64 {
    300.0 + 90.0 * at as f64
}

struct Phone {
    codec: Codec,
    hz: f64,
    ssrc: u32,
    encoder: Encoder,
    decoder: Decoder,
    heard: Vec<i16>,
    packets: Vec<Vec<u8>>,
}

struct Meeting {
    room: Room,
    described: BTreeMap<Name, Described>,
    phones: BTreeMap<Name, Phone>,
    tick: u64,
}

impl Meeting {
    fn new(codecs: &[Codec]) -> Self {
        let mut made = Self {
            room: Room::default(),
            described: BTreeMap::new(),
            phones: BTreeMap::new(),
            tick: 0,
        };
        for (at, codec) in codecs.iter().enumerate() {
            made.join(at, *codec);
        }
        made
    }

    fn join(&mut self, at: usize, codec: Codec) {
        let name: Name = format!("p{at}").into();
        let ssrc = 1000 + at as u32;
        let phone = Phone {
            codec,
            hz: hz(at),
            ssrc,
            encoder: Encoder::new(codec).unwrap(),
            decoder: Decoder::new(codec).unwrap(),
            heard: Vec::new(),
            packets: Vec::new(),
        };
        let described = Described {
            ssrcs: vec![ssrc],
            formats: vec![(number(codec), Format::Audio(codec)), (101, Format::Keys)],
            level_extension: Some(1),
            muted: false,
            mix: Some(Mix {
                ssrc: 9000 + at as u32,
                codec,
                payload_type: number(codec),
                levels_extension: Some(2),
            }),
        };
        self.phones.insert(name.clone(), phone);
        self.described.insert(name, described);
        self.room.describe(&self.described);
    }

    /// Everybody of `talking` sends tones for so many frames.
    fn run(&mut self, frames: usize, talking: impl Fn(&str) -> bool) {
        for _ in 0..frames {
            let now = 1_000_000 + self.tick * 20_000;
            for (name, phone) in &mut self.phones {
                if !talking(name) {
                    continue;
                }
                let mut samples = [0; FRAME];
                for (at, sample) in samples.iter_mut().enumerate() {
                    let time = (self.tick as usize * FRAME + at) as f64 / f64::from(RATE);
                    *sample = (3000.0 * (TAU * phone.hz * time).sin()) as i16;
                }
                let mut payload = Vec::new();
                phone.encoder.encode(&samples, &mut payload).unwrap();
                let timestamp = self.tick as u32 * phone.codec.clock_rate() / 50;
                let packet = packet(number(phone.codec), self.tick as u16, timestamp, phone.ssrc, &payload);
                self.room.packet(now - 4000, &packet).unwrap();
            }
            let phones = &mut self.phones;
            let done = self
                .room
                .tick(now, |name, packet| phones.get_mut(name).unwrap().packets.push(packet.to_vec()));
            done.unwrap();
            self.tick += 1;
        }
        for phone in self.phones.values_mut() {
            for packet in std::mem::take(&mut phone.packets) {
                let header = Header::parse(&packet).unwrap();
                assert_eq!(header.payload_type, number(phone.codec));
                phone.decoder.decode(header.payload, &mut phone.heard).unwrap();
            }
        }
    }

    /// What a phone has heard of a tone in the last so many frames: its amplitude.
    fn amplitude(&self, phone: &str, hz: f64, frames: usize) -> f64 {
        let heard = &self.phones[phone].heard;
        let last = &heard[heard.len() - frames * FRAME..];
        let (mut s, mut c) = (0.0, 0.0);
        for (at, sample) in last.iter().enumerate() {
            let angle = TAU * hz * at as f64 / f64::from(RATE);
            s += f64::from(*sample) * angle.sin();
            c += f64::from(*sample) * angle.cos();
        }
        2.0 * (s * s + c * c).sqrt() / last.len() as f64
    }
}

fn packet(payload_type: u8, sequence: u16, timestamp: u32, ssrc: u32, payload: &[u8]) -> Vec<u8> {
    let mut made = vec![0x80, payload_type];
    made.extend(sequence.to_be_bytes());
    made.extend(timestamp.to_be_bytes());
    made.extend(ssrc.to_be_bytes());
    made.extend(payload);
    made
}

#[test]
fn everybody_hears_everybody_else_and_not_itself_in_any_codec() {
    let codecs = [Codec::Pcma, Codec::Pcmu, Codec::G722, Codec::Opus, Codec::Pcma, Codec::Opus];
    let mut meeting = Meeting::new(&codecs);
    meeting.run(150, |_| true);
    for me in 0..codecs.len() {
        for other in 0..codecs.len() {
            let found = meeting.amplitude(&format!("p{me}"), hz(other), 50);
            if me == other {
                assert!(found < 150.0, "p{me} hears itself: {found}");
            } else {
                assert!((2000.0..4000.0).contains(&found), "p{me} hears p{other} at {found}");
            }
        }
    }
}

#[test]
fn who_speaks_is_named_and_levels_are_told() {
    let mut meeting = Meeting::new(&[Codec::Pcma; 4]);
    let mut last = Vec::new();
    meeting.run(60, |name| name == "p1");
    assert_eq!(meeting.room.speaker().map(|name| &**name), Some("p1"));
    let now = 1_000_000 + meeting.tick * 20_000;
    meeting
        .room
        .tick(now, |name, packet| last.push((name.clone(), packet.to_vec())))
        .unwrap();
    assert_eq!(last.len(), 4);
    for (name, packet) in &last {
        let header = Header::parse(packet).unwrap();
        let csrcs: Vec<u32> = header.csrcs().collect();
        if &**name == "p1" {
            assert!(csrcs.is_empty());
            assert!(header.extension.is_none());
        } else {
            assert_eq!(csrcs, [1001]);
            // 3,000 of 32,768 as a sine: -24 dBov.
            let levels = header.extension.unwrap().find(2).unwrap().unwrap();
            assert_eq!(levels.len(), 1);
            assert!((22..=27).contains(&levels[0]), "{levels:?}");
        }
    }
    // Another one becomes the speaker when the first is silent.
    meeting.run(60, |name| name == "p3");
    assert_eq!(meeting.room.speaker().map(|name| &**name), Some("p3"));
}

#[test]
fn fifteen_of_twenty_are_named() {
    let mut meeting = Meeting::new(&[Codec::Pcmu; 20]);
    meeting.run(50, |_| true);
    let now = 1_000_000 + meeting.tick * 20_000;
    meeting
        .room
        .tick(now, |_, packet| {
            let header = Header::parse(packet).unwrap();
            assert_eq!(header.csrcs().len(), 15);
            assert_eq!(header.extension.unwrap().find(2).unwrap().unwrap().len(), 15);
            assert_eq!(header.payload.len(), 160);
        })
        .unwrap();
}

#[test]
fn those_who_listen_share_one_encoder() {
    let mut meeting = Meeting::new(&[Codec::Opus; 30]);
    meeting.run(20, |name| name == "p0");
    let now = 1_000_000 + meeting.tick * 20_000;
    let done = meeting.room.tick(now, |_, _| {}).unwrap();
    // One for all, and one for who speaks.
    assert_eq!((done.sent, done.encoded), (30, 2));
}

#[test]
fn star_six_mutes_and_unmutes() {
    let mut meeting = Meeting::new(&[Codec::Pcma; 3]);
    let press = |meeting: &mut Meeting, key: u8, timestamp: u32| {
        let now = 1_000_000 + meeting.tick * 20_000;
        let event = packet(101, 60_000, timestamp, 1000, &[key, 10, 0, 160]);
        meeting.room.packet(now, &event).unwrap()
    };
    meeting.run(60, |_| true);
    assert!(meeting.amplitude("p1", hz(0), 25) > 2000.0);
    assert!(press(&mut meeting, 10, 5).is_none());
    assert_eq!(press(&mut meeting, 6, 6).map(|(name, _)| name.to_string()), Some("p0".to_owned()));
    meeting.run(60, |_| true);
    assert!(meeting.amplitude("p1", hz(0), 25) < 100.0);
    assert!(meeting.amplitude("p1", hz(2), 25) > 2000.0);
    assert!(meeting.room.reports().any(|one| &*one.name == "p0" && one.muted));
    press(&mut meeting, 10, 7);
    press(&mut meeting, 6, 8);
    meeting.run(60, |_| true);
    assert!(meeting.amplitude("p1", hz(0), 25) > 2000.0);
}

#[test]
fn who_leaves_is_not_heard_and_who_joins_is() {
    let mut meeting = Meeting::new(&[Codec::G722; 3]);
    meeting.run(50, |_| true);
    meeting.join(3, Codec::Pcmu);
    meeting.run(80, |_| true);
    assert!(meeting.amplitude("p0", hz(3), 25) > 2000.0);
    meeting.described.remove("p3");
    meeting.phones.remove("p3");
    meeting.room.describe(&meeting.described);
    meeting.run(60, |_| true);
    assert!(meeting.amplitude("p0", hz(3), 25) < 100.0);
    assert!(meeting.amplitude("p0", hz(1), 25) > 2000.0);
    assert_eq!(meeting.room.sizes(), (3, 3));
}

#[test]
fn the_sum_of_many_loud_ones_does_not_wrap() {
    // In step with each other: 30 times 3,000 is beyond what a sample can be.
    let mut meeting = Meeting::new(&[Codec::Pcma; 30]);
    for phone in meeting.phones.values_mut() {
        phone.hz = 500.0;
    }
    meeting.run(60, |_| true);
    let heard = &meeting.phones["p0"].heard;
    let last = &heard[heard.len() - 1600..];
    // A wrapped sum would jump from one end to the other.
    let jump = last
        .windows(2)
        .map(|pair| (i32::from(pair[1]) - i32::from(pair[0])).abs())
        .max()
        .unwrap();
    assert!(last.iter().any(|sample| *sample > 30_000) && jump < 30_000, "{jump}");
}

proptest! {
    /// No packet, known or not, is the end of a room.
    #[test]
    fn any_packet_may_come(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..50), ours in any::<bool>()) {
        let mut meeting = Meeting::new(&[Codec::Pcma, Codec::Opus]);
        for (at, mut packet) in packets.into_iter().enumerate() {
            if ours && packet.len() >= 12 {
                packet[0] = 0x80 | packet[0] & 0x3F;
                packet[1] = if at % 2 == 0 { 8 } else { 111 };
                packet[8..12].copy_from_slice(&(1000 + at as u32 % 2).to_be_bytes());
            }
            let now = 1_000_000 + at as u64 * 20_000;
            let _ = meeting.room.packet(now, &packet);
            meeting.room.tick(now, |_, packet| assert!(Header::parse(packet).is_ok())).unwrap();
        }
    }
}
