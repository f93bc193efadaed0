//! The edge as a browser and a data plane see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Browser, Edge, PATIENCE, Plain, Way, connect, wait_for};
use serde_json::{Value, json};
use shunt_rtp::rtcp::{self, Kind};
use shunt_rtp::{Header, Packet, demux};
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use str0m::ice::{StunMessage, TransId};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::rtp::ExtensionValues;

const OPUS: u8 = 111;
const VP8: u8 = 96;
const VP9: u8 = 98;
/// A VP8 descriptor with what begins a key frame, and with what does not.
const KEY: &[u8] = &[0x10, 0x00, 1, 2, 3];
const DELTA: &[u8] = &[0x10, 0x01, 1, 2, 3];

/// A browser with a session.
struct Joined {
    edge: Edge,
    browser: Browser,
    answer: Value,
    mids: Vec<Mid>,
    plain: Vec<Plain>,
}

impl Joined {
    fn new(way: Way, media: &[(MediaKind, Direction)], limits: &Value) -> Self {
        Self::with_offer(way, media, limits).0
    }

    /// The browser, and the offer that it made.
    fn with_offer(way: Way, media: &[(MediaKind, Direction)], limits: &Value) -> (Self, String) {
        let edge = Edge::start(limits);
        let mut browser = Browser::new(way, edge.address);
        let (offer, pending, mids) = browser.offer(media);
        let answer = edge.create("ann", &offer);
        browser.accept(pending, answer["answer"].as_str().unwrap());
        let plain = connect(&edge, &answer);
        wait_for(&mut browser, "it is connected", |browser| browser.connected);
        let joined = Self {
            edge,
            browser,
            answer,
            mids,
            plain,
        };
        (joined, offer)
    }

    fn id(&self) -> &str {
        self.answer["session"].as_str().unwrap()
    }

    fn view(&self) -> Value {
        self.edge.session(self.id())
    }

    /// The next packets at a plain socket that a condition holds for, while the browser goes on.
    fn await_plain(&mut self, at: usize, what: &str, mut fits: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(packet) = self.plain[at].receive() {
                if fits(&packet) {
                    return packet;
                }
            }
            assert!(Instant::now() < deadline, "not in time: {what}");
            self.browser.advance();
        }
    }
}

const BOTH: &[(MediaKind, Direction)] = &[(MediaKind::Audio, Direction::SendRecv), (MediaKind::Video, Direction::SendRecv)];

fn is_rtp(packet: &[u8]) -> bool {
    demux(packet) == Packet::Rtp
}

fn has(packet: &[u8], kind: Kind) -> bool {
    demux(packet) == Packet::Rtcp && rtcp::classify(packet).unwrap().contains(kind)
}

fn media_go_both_ways(way: Way) {
    let mut joined = Joined::new(way, BOTH, &json!({}));
    let values = ExtensionValues {
        audio_level: Some(-30),
        voice_activity: Some(true),
        ..ExtensionValues::default()
    };
    joined.browser.write(joined.mids[0], OPUS, 7, 960, values, b"sound");
    let packet = joined.await_plain(0, "sound at the plain side", is_rtp);
    let header = Header::parse(&packet).unwrap();
    assert_eq!(
        (header.sequence, header.timestamp, header.payload_type, header.payload),
        (7, 960, OPUS, &b"sound"[..])
    );
    assert_eq!(
        header.extension.unwrap().find(1).unwrap(),
        Some(&[0x80 | 30][..]),
        "the audio level, and nothing of this hop"
    );
    assert_eq!(header.extension.unwrap().elements().count(), 1);

    let stream: Vec<Vec<u8>> = (0..20)
        .map(|n| Plain::rtp(VP8, 99, 500 + n, 3000 * u32::from(n), if n == 0 { KEY } else { DELTA }))
        .collect();
    for packet in &stream {
        joined.plain[1].send(packet);
        joined.browser.advance();
    }
    wait_for(&mut joined.browser, "all pictures", |browser| browser.packets.len() == 20);
    let numbers: Vec<u64> = joined.browser.packets.iter().map(|packet| *packet.seq_no).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    let times: Vec<u32> = joined.browser.packets.iter().map(|packet| packet.header.timestamp).collect();
    assert!(times.windows(2).all(|pair| pair[1] == pair[0] + 3000), "{times:?}");
    let view = joined.view();
    assert_eq!(view["srtp"], "AEAD_AES_256_GCM");
    assert_eq!(
        (view["state"].as_str(), view["transport"].as_str()),
        (Some("connected"), Some(if way == Way::Udp { "udp" } else { "tcp" }))
    );
    assert_eq!(
        (
            view["media"][0]["from_browser"]["packets"].as_u64(),
            view["media"][1]["to_browser"]["packets"].as_u64()
        ),
        (Some(1), Some(20))
    );
}

#[test]
fn media_go_both_ways_over_udp() {
    media_go_both_ways(Way::Udp);
}

#[test]
fn media_go_both_ways_over_tcp() {
    media_go_both_ways(Way::Tcp);
}

#[test]
fn what_a_browser_loses_the_edge_sends_again() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let mut count = 0;
    joined.browser.lose_received = Box::new(move |packet| {
        count += u32::from(is_rtp(packet));
        is_rtp(packet) && count % 10 == 0
    });
    for n in 0..200u16 {
        joined.plain[1].send(&Plain::rtp(VP8, 99, n, 3000 * u32::from(n), if n == 0 { KEY } else { DELTA }));
        joined.browser.advance();
    }
    wait_for(&mut joined.browser, "what was lost", |browser| {
        let numbers: BTreeSet<u64> = browser.packets.iter().map(|packet| *packet.seq_no).collect();
        numbers.len() == 200
    });
    let asked = joined.await_plain(1, "a report", |packet| has(packet, Kind::Rr));
    assert!(
        !has(&asked, Kind::Nack),
        "the data plane's side lost nothing and is asked for nothing"
    );
    assert!(joined.view()["media"][1]["to_browser"]["nacks_received"].as_u64().is_some());
}

#[test]
fn what_was_lost_before_the_edge_is_asked_for_there() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    for n in [0u16, 1, 2, 5, 6] {
        joined.plain[1].send(&Plain::rtp(VP8, 99, n, 0, if n == 0 { KEY } else { DELTA }));
    }
    let nack = joined.await_plain(1, "a NACK", |packet| has(packet, Kind::Nack));
    let item = rtcp::walk(&nack).next().unwrap().unwrap();
    let request = item.nack().unwrap();
    assert_eq!((request.media_ssrc, request.lost().collect::<Vec<_>>()), (99, vec![3, 4]));
    for n in [3u16, 4] {
        joined.plain[1].send(&Plain::rtp(VP8, 99, n, 0, DELTA));
    }
    wait_for(&mut joined.browser, "all seven", |browser| browser.packets.len() == 7);
    wait_for(&mut joined.browser, "it is counted", |_| true);
    assert_eq!(joined.view()["media"][1]["to_browser"]["repaired"], 2);
}

#[test]
fn what_the_data_plane_lost_comes_from_the_edges_own_copies() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    for n in 0..10u32 {
        joined
            .browser
            .write(joined.mids[1], VP8, 100 + u64::from(n), 3000 * n, ExtensionValues::default(), KEY);
    }
    let packet = joined.await_plain(1, "the last picture", |packet| {
        is_rtp(packet) && Header::parse(packet).unwrap().sequence == 109
    });
    let ssrc = Header::parse(&packet).unwrap().ssrc;
    joined.plain[1].send(&rtcp::nack(1, ssrc, [104, 105]).unwrap());
    for number in [104, 105] {
        joined.await_plain(1, "it comes again", |packet| {
            is_rtp(packet) && Header::parse(packet).unwrap().sequence == number
        });
    }
    assert_eq!(joined.view()["media"][1]["from_browser"]["resent"], 2);
}

#[test]
fn what_a_browser_sends_and_the_network_loses_is_asked_of_the_browser() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let mut count = 0;
    joined.browser.lose_sent = Box::new(move |packet| {
        count += u32::from(is_rtp(packet));
        is_rtp(packet) && count % 10 == 0
    });
    for n in 0..100u32 {
        joined
            .browser
            .write(joined.mids[1], VP8, 100 + u64::from(n), 3000 * n, ExtensionValues::default(), KEY);
    }
    let mut numbers = BTreeSet::new();
    joined.await_plain(1, "all pictures", |packet| {
        if is_rtp(packet) {
            numbers.insert(Header::parse(packet).unwrap().sequence);
        }
        numbers.len() == 99 + usize::from(numbers.contains(&199))
    });
}

#[test]
fn requests_for_key_frames_pass_in_both_directions() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    joined.plain[1].send(&Plain::rtp(VP8, 99, 1, 0, KEY));
    wait_for(&mut joined.browser, "a picture", |browser| !browser.packets.is_empty());
    joined.browser.want_key_frame(joined.mids[1]);
    let pli = joined.await_plain(1, "a PLI", |packet| has(packet, Kind::Pli));
    let wanted: Vec<u32> = rtcp::walk(&pli)
        .flatten()
        .flat_map(|item| item.key_frame_requests().collect::<Vec<_>>())
        .map(|one| one.media_ssrc)
        .collect();
    assert_eq!(wanted, [99]);

    joined.browser.write(joined.mids[1], VP8, 1, 0, ExtensionValues::default(), KEY);
    let packet = joined.await_plain(1, "its picture", is_rtp);
    joined.plain[1].send(&rtcp::pli(1, Header::parse(&packet).unwrap().ssrc));
    wait_for(&mut joined.browser, "the request", |browser| browser.key_frames_wanted == 1);
}

#[test]
fn an_estimate_of_the_receivers_caps_what_a_browser_sends() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({"send_bitrate": 1_000_000}));
    joined.browser.write(joined.mids[1], VP8, 1, 0, ExtensionValues::default(), KEY);
    wait_for(&mut joined.browser, "the configured most", |browser| {
        browser.remb.is_some_and(|remb| remb > 990_000)
    });
    joined.plain[1].send(&rtcp::remb(1, 300_000, &[1]).unwrap());
    wait_for(&mut joined.browser, "the receivers' most", |browser| {
        browser.remb.is_some_and(|remb| (390_000..=400_000).contains(&remb))
    });
}

#[test]
fn a_sender_that_takes_anothers_place_goes_on_from_its_key_frame() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    joined.plain[1].send(&Plain::rtp(VP8, 99, 1, 0, KEY));
    wait_for(&mut joined.browser, "the first sender", |browser| browser.packets.len() == 1);
    joined.plain[1].send(&Plain::rtp(VP8, 55, 9, 0, KEY));
    joined.plain[1].send(&rtcp::bye(&[99]));
    joined.plain[1].send(&Plain::rtp(VP8, 55, 10, 0, DELTA));
    let pli = joined.await_plain(1, "a request for a key frame", |packet| has(packet, Kind::Pli));
    let item = rtcp::walk(&pli).next().unwrap().unwrap();
    assert_eq!(item.key_frame_requests().next().unwrap().media_ssrc, 55);
    joined.plain[1].send(&Plain::rtp(VP8, 55, 11, 0, KEY));
    wait_for(&mut joined.browser, "the second sender", |browser| browser.packets.len() == 2);
    let (first, second) = (&joined.browser.packets[0], &joined.browser.packets[1]);
    assert_eq!((first.header.ssrc, *first.seq_no + 1), (second.header.ssrc, *second.seq_no));
    let view = joined.view();
    assert_eq!(
        (
            view["media"][1]["to_browser"]["other_source"].as_u64(),
            view["media"][1]["to_browser"]["before_key_frame"].as_u64()
        ),
        (Some(1), Some(1))
    );
}

#[test]
fn a_sender_that_was_paused_goes_on_from_a_key_frame_and_no_number_is_missing() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    for n in 0..3 {
        joined.plain[1].send(&Plain::rtp(VP8, 99, n, 0, if n == 0 { KEY } else { DELTA }));
    }
    wait_for(&mut joined.browser, "the first frames", |browser| browser.packets.len() == 3);
    let goes_on = Instant::now() + Duration::from_millis(600);
    wait_for(&mut joined.browser, "a pause", |_| Instant::now() >= goes_on);
    joined.plain[1].send(&Plain::rtp(VP8, 99, 100, 54_000, DELTA));
    joined.await_plain(1, "a request for a key frame", |packet| {
        assert!(!has(packet, Kind::Nack), "what was left out on purpose is not asked for");
        has(packet, Kind::Pli)
    });
    joined.plain[1].send(&Plain::rtp(VP8, 99, 101, 57_000, KEY));
    wait_for(&mut joined.browser, "the next frame", |browser| browser.packets.len() == 4);
    let numbers: Vec<u64> = joined.browser.packets.iter().map(|packet| *packet.seq_no).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    let to_browser = &joined.view()["media"][1]["to_browser"];
    assert_eq!(
        (to_browser["lost"].as_i64(), to_browser["before_key_frame"].as_u64()),
        (Some(0), Some(1))
    );
}

#[test]
fn of_a_senders_encodings_a_browser_gets_one_and_the_best_that_fits() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({"receive_bitrate": 20_000_000}));
    let mut reports = Vec::new();
    for ssrc in [1, 2] {
        let info = rtcp::SenderInfo {
            ssrc,
            ntp: 1 << 40,
            rtp: 0,
            packets: 0,
            octets: 0,
        };
        reports.extend(shunt_edge_media::sender_report(&info));
        reports.extend(shunt_edge_media::cname_item(ssrc, "ann"));
    }
    joined.plain[1].send(&reports);
    let payload = |key: bool, size: usize| [if key { KEY } else { DELTA }, &vec![7; size]].concat();
    let deadline = Instant::now() + PATIENCE;
    let (mut number, mut asked) = (0u16, false);
    // The low encoding comes first; the high one begins with a key frame only when it is asked for one.
    while !joined.browser.packets.iter().any(|packet| packet.payload.len() > 500) {
        assert!(Instant::now() < deadline, "{}", joined.view());
        joined.plain[1].send(&Plain::rtp(VP8, 1, number, u32::from(number) * 900, &payload(number == 0, 50)));
        joined.plain[1].send(&Plain::rtp(VP8, 2, number, u32::from(number) * 900, &payload(asked, 600)));
        number += 1;
        asked = false;
        joined.browser.advance();
        while let Some(packet) = joined.plain[1].receive() {
            let items = if demux(&packet) == Packet::Rtcp {
                rtcp::walk(&packet).flatten().collect()
            } else {
                Vec::new()
            };
            asked |= items.iter().any(|item| item.key_frame_requests().any(|one| one.media_ssrc == 2));
        }
    }
    let streams: BTreeSet<u32> = joined.browser.packets.iter().map(|packet| *packet.header.ssrc).collect();
    assert_eq!(streams.len(), 1, "one stream for the browser");
    let mut numbers: Vec<u64> = joined.browser.packets.iter().map(|packet| *packet.seq_no).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), joined.browser.packets.len());
    assert!(joined.view()["media"][1]["to_browser"]["other_encoding"].as_u64().unwrap() > 0);
}

/// A picture of VP9 in two spatial layers, the higher in two packets (RFC 9628 section 4.2: P, L, F, B and E; the layer; a reference).
fn layered(key: bool, number: u16, timestamp: u32, size: usize) -> [Vec<u8>; 3] {
    let packet = |at: u16, marks: u8, layer: u8, size: usize| {
        let head = if key {
            vec![0x30 | marks, layer]
        } else {
            vec![0x70 | marks, layer, 2]
        };
        Plain::rtp(VP9, 5, number.wrapping_add(at), timestamp, &[head, vec![7; size]].concat())
    };
    let mut all = [packet(0, 0x0C, 0, 100), packet(1, 0x08, 3, size), packet(2, 0x04, 3, size)];
    all[2][1] |= 0x80;
    all
}

#[test]
fn of_a_streams_spatial_layers_a_browser_gets_those_that_fit() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({"receive_bitrate": 400_000}));
    let deadline = Instant::now() + PATIENCE;
    let (mut number, mut timestamp, mut asked, mut least) = (0u16, 0u32, true, None);
    let mut sent = |joined: &mut Joined, size: usize| {
        for packet in layered(std::mem::take(&mut asked), number, timestamp, size) {
            joined.plain[1].send(&packet);
        }
        (number, timestamp) = (number.wrapping_add(3), timestamp.wrapping_add(900));
        joined.browser.advance();
        while let Some(packet) = joined.plain[1].receive() {
            for item in rtcp::walk(&packet).flatten().filter(|_| demux(&packet) == Packet::Rtcp) {
                asked |= item.key_frame_requests().any(|one| one.media_ssrc == 5);
                least = item.least_rate().or(least);
            }
        }
        assert!(Instant::now() < deadline, "{}", joined.view());
        least
    };
    let counts = |joined: &Joined| joined.view()["media"][1]["to_browser"].clone();
    let mut said = None;
    while said.is_none() || counts(&joined)["other_layer"].as_u64().unwrap() < 50 {
        said = sent(&mut joined, 1300);
    }
    let said = said.unwrap();
    assert!(said.media_ssrc == 5 && said.bitrate < 400_000, "the lower layer alone: {said:?}");
    let seen = counts(&joined);
    assert_eq!((seen["layers"].as_u64(), seen["layers_sent"].as_u64()), (Some(2), Some(1)));
    // The higher one gets small: all fits, from a key frame on that the edge has to ask for.
    while counts(&joined)["layers_sent"].as_u64() == Some(1) {
        sent(&mut joined, 10);
    }
    for _ in 0..10 {
        sent(&mut joined, 10);
    }
    let packets = &joined.browser.packets;
    let numbers: Vec<u64> = packets.iter().map(|packet| *packet.seq_no).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    let times: Vec<(u32, bool)> = packets
        .iter()
        .map(|packet| (packet.header.timestamp, packet.header.marker))
        .collect();
    let last = |at: usize| times.get(at + 1).is_none_or(|next| next.0 != times[at].0);
    assert!(
        (0..times.len() - 3).all(|at| times[at].1 == last(at)),
        "each picture ends once: {times:?}"
    );
    assert!(packets.back().unwrap().payload.len() < 20, "the higher layer is back");
}

#[test]
fn packets_from_elsewhere_do_not_reach_the_browser() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&Plain::rtp(VP8, 99, 1, 0, KEY), joined.plain[1].edge).unwrap();
    joined.plain[1].send(&Plain::rtp(VP8, 77, 1, 0, KEY));
    joined.plain[1].send(&Plain::rtp(3, 77, 2, 0, KEY));
    wait_for(&mut joined.browser, "the right one", |browser| !browser.packets.is_empty());
    let id = joined.id().to_owned();
    let edge = &joined.edge;
    wait_for(&mut joined.browser, "both are counted", |_| {
        let view = edge.session(&id);
        let counts = &view["media"][1]["to_browser"];
        (counts["other_address"].as_u64(), counts["unusable"].as_u64()) == (Some(1), Some(1))
    });
    assert_eq!(joined.view()["media"][1]["to_browser"]["ssrc"], 77);
}

#[test]
fn media_that_are_added_take_nothing_from_those_that_stay() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let before = joined.answer["media"].clone();
    joined.plain[1].send(&Plain::rtp(VP8, 99, 1, 0, KEY));
    let (offer, pending, mids) = joined.browser.offer(&[(MediaKind::Video, Direction::RecvOnly)]);
    let (status, answer) = joined
        .edge
        .ask("POST", &format!("/v1/sessions/{}/offer", joined.id()), &json!({ "offer": offer }));
    assert_eq!(status, 200, "{answer}");
    joined.browser.accept(pending, answer["answer"].as_str().unwrap());
    let media = answer["media"].as_array().unwrap();
    assert_eq!(
        (media.len(), &media[0]["rtp"], &media[1]["rtp"]),
        (3, &before[0]["rtp"], &before[1]["rtp"])
    );
    assert_eq!(
        (media[2]["mid"].as_str(), media[2]["direction"].as_str()),
        (Some(&*mids[0]), Some("recvonly"))
    );
    let third = Plain::new(&media[2]);
    let named = json!({"media": [{"mid": media[2]["mid"], "rtp": third.address()}]});
    assert_eq!(
        joined.edge.ask("PUT", &format!("/v1/sessions/{}/media", joined.id()), &named).0,
        204
    );
    for n in 2..30u16 {
        joined.plain[1].send(&Plain::rtp(VP8, 99, n, 0, DELTA));
        third.send(&Plain::rtp(VP8, 44, n, 0, KEY));
        joined.browser.advance();
    }
    wait_for(&mut joined.browser, "both senders", |browser| browser.packets.len() == 29 + 28);
    let streams: BTreeSet<u32> = joined.browser.packets.iter().map(|packet| *packet.header.ssrc).collect();
    assert_eq!(streams.len(), 2);
}

#[test]
fn a_session_ends_when_it_is_deleted_and_leaves_nothing() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let path = format!("/v1/sessions/{}", joined.id());
    assert_eq!(joined.edge.ask("DELETE", &path, &Value::Null).0, 204);
    assert_eq!(joined.edge.ask("GET", &path, &Value::Null).0, 404);
    wait_for(&mut joined.browser, "the browser is told", |browser| {
        browser.closed || !browser.rtc.is_alive()
    });
    let (_, status) = joined.edge.ask("GET", "/v1/status", &Value::Null);
    assert_eq!(
        (
            status["sessions"].as_u64(),
            status["media"].as_u64(),
            status["ports"]["used"].as_u64()
        ),
        (Some(0), Some(0), Some(0))
    );
}

#[test]
fn without_consent_a_session_ends() {
    let joined = Joined::new(Way::Udp, BOTH, &json!({"consent": 1.0}));
    let deadline = Instant::now() + PATIENCE;
    while joined.edge.ask("GET", &format!("/v1/sessions/{}", joined.id()), &Value::Null).0 != 404 {
        assert!(Instant::now() < deadline, "it stays: {}", joined.view());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A value of the first attribute of a name.
fn attribute<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap()
}

/// ICE begins anew from another address. `ask` has the edge answer an offer; what is between the two goes on with its keys.
fn ice_begins_anew(media: &[(MediaKind, Direction)], ask: impl Fn(&Joined, &str) -> String) {
    let mut joined = Joined::new(Way::Udp, media, &json!({}));
    let mut sequence = 0..;
    let mut send = |joined: &mut Joined, payload: &[u8]| {
        let number = sequence.next().unwrap();
        joined.plain[0].send(&Plain::rtp(VP8, 99, number, 3000 * u32::from(number), payload));
    };
    send(&mut joined, KEY);
    wait_for(&mut joined.browser, "a picture", |browser| browser.packets.len() == 1);
    let user = joined.view()["ufrag"].as_str().unwrap().to_owned();
    assert_eq!(user, attribute(joined.answer["answer"].as_str().unwrap(), "a=ice-ufrag:"));

    let (offer, pending) = joined.browser.restart_ice();
    let answer = ask(&joined, &offer);
    let renewed = attribute(&answer, "a=ice-ufrag:").to_owned();
    assert_ne!(renewed, user);
    assert_eq!(joined.view()["ufrag"], renewed.as_str());
    let again = ask(&joined, &offer);
    assert_eq!(
        attribute(&again, "a=ice-ufrag:"),
        renewed,
        "the same credentials again change nothing"
    );

    joined.browser.connected = false;
    let address = joined.browser.accept_elsewhere(pending, &answer).to_string();
    let deadline = Instant::now() + PATIENCE;
    while joined.view()["remote"] != address.as_str() {
        assert!(Instant::now() < deadline, "{}", joined.view());
        joined.browser.advance();
    }
    for _ in 0..20 {
        send(&mut joined, DELTA);
        joined.browser.advance();
    }
    wait_for(&mut joined.browser, "pictures at the new address", |browser| {
        browser.packets.len() >= 21
    });
    let numbers: Vec<u64> = joined.browser.packets.iter().map(|packet| *packet.seq_no).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert_eq!(joined.view()["state"], "connected");
    assert!(!joined.browser.connected && !joined.browser.closed, "DTLS does not begin anew");
    if media[0].1 == Direction::SendRecv {
        joined.browser.write(joined.mids[0], VP8, 1, 0, ExtensionValues::default(), KEY);
        joined.await_plain(0, "a picture of the browser", is_rtp);
    }

    // The credentials before open nothing any more.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let name = format!("{user}:browser");
    let mut check = [&[0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42][..], &[7; 12], &[0, 6, 0]].concat();
    check.push(u8::try_from(name.len()).unwrap());
    check.extend(name.as_bytes());
    check.resize(check.len().next_multiple_of(4), 0);
    let length = u16::try_from(check.len() - 20).unwrap();
    check[2..4].copy_from_slice(&length.to_be_bytes());
    let before = joined.edge.dropped("unknown_user");
    stranger.send_to(&check, joined.edge.address).unwrap();
    let edge = &joined.edge;
    wait_for(&mut joined.browser, "the old name is unknown", |_| {
        edge.dropped("unknown_user") > before
    });
}

fn by_offer(joined: &Joined, offer: &str) -> String {
    let path = format!("/v1/sessions/{}/offer", joined.id());
    let (status, answer) = joined.edge.ask("POST", &path, &json!({ "offer": offer }));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["media"][0]["rtp"], joined.answer["media"][0]["rtp"]);
    answer["answer"].as_str().unwrap().to_owned()
}

/// The first answer with the credentials of the edge's.
fn by_credentials(joined: &Joined, offer: &str) -> String {
    let path = format!("/v1/sessions/{}/ice", joined.id());
    let given = json!({"ufrag": attribute(offer, "a=ice-ufrag:"), "pwd": attribute(offer, "a=ice-pwd:")});
    let (status, ice) = joined.edge.ask("POST", &path, &given);
    assert_eq!(status, 200, "{ice}");
    let first = joined.answer["answer"].as_str().unwrap();
    let renewed = first.replace(attribute(first, "a=ice-ufrag:"), ice["ufrag"].as_str().unwrap());
    let candidates = ice["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2, "UDP and TCP");
    for candidate in candidates {
        assert!(renewed.contains(candidate.as_str().unwrap()), "{candidate}");
    }
    renewed.replace(attribute(first, "a=ice-pwd:"), ice["pwd"].as_str().unwrap())
}

/// A NAT that rebinds twice: media goes on in both directions by the newest address that a check came from, each time.
fn a_nat_rebinds(media: &[(MediaKind, Direction)]) {
    let mut joined = Joined::new(Way::Udp, media, &json!({}));
    let mut sequence = 0_u16;
    for round in 0..3_u64 {
        let address = (round > 0).then(|| joined.browser.rebind().to_string());
        let deadline = Instant::now() + PATIENCE;
        while address.as_ref().is_some_and(|address| joined.view()["remote"] != address.as_str()) {
            assert!(Instant::now() < deadline, "{}", joined.view());
            joined.browser.advance();
        }
        let before = joined.browser.packets.len();
        for _ in 0..10 {
            let payload = if sequence == 0 { KEY } else { DELTA };
            joined.plain[0].send(&Plain::rtp(VP8, 99, sequence, 3000 * u32::from(sequence), payload));
            sequence += 1;
            joined.browser.advance();
        }
        wait_for(&mut joined.browser, "pictures at the address", |browser| {
            browser.packets.len() == before + 10
        });
        if media[0].1 == Direction::SendRecv {
            joined
                .browser
                .write(joined.mids[0], VP8, 1 + round, 0, ExtensionValues::default(), KEY);
            joined.await_plain(0, "a picture of the browser", is_rtp);
        }
    }
    assert_eq!(joined.view()["state"], "connected");
    assert!(!joined.browser.closed);
}

#[test]
fn a_browser_whose_nat_rebinds_sends_and_receives_on() {
    a_nat_rebinds(&[(MediaKind::Video, Direction::SendRecv)]);
}

#[test]
fn a_viewer_whose_nat_rebinds_receives_on() {
    a_nat_rebinds(&[(MediaKind::Video, Direction::RecvOnly)]);
}

/// A client that takes the passive part of DTLS, as FFmpeg does, and misses what the edge sends first.
#[test]
fn as_dtls_client_the_edge_sends_its_flights_again() {
    for lost in 0..3 {
        let edge = Edge::start(&json!({}));
        let mut browser = Browser::new(Way::Udp, edge.address);
        let (offer, pending, _) = browser.offer(BOTH);
        let answer = edge.create("ann", &offer.replace("a=setup:actpass", "a=setup:passive"));
        let answer = answer["answer"].as_str().unwrap();
        assert!(answer.contains("a=setup:active"), "{answer}");
        browser.accept(pending, answer);
        let mut left = lost;
        browser.lose_received = Box::new(move |packet| {
            let loses = demux(packet) == Packet::Dtls && left > 0;
            left -= i32::from(loses);
            loses
        });
        wait_for(&mut browser, "it is connected", |browser| browser.connected);
    }
}

/// The edge's last flight is lost, and the browser repeats its own before the edge's timer ends.
#[test]
fn as_dtls_client_the_edge_repeats_its_last_flight_although_the_peer_repeats_its_own() {
    let edge = Edge::start(&json!({}));
    let mut browser = Browser::new(Way::Udp, edge.address);
    let (offer, pending, _) = browser.offer(BOTH);
    let answer = edge.create("ann", &offer.replace("a=setup:actpass", "a=setup:passive"));
    browser.accept(pending, answer["answer"].as_str().unwrap());
    // What the browser has sent since its ServerHello; when the first packet of the answer to it was lost; whether the browser has repeated it.
    let flight = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let lost = std::rc::Rc::new(std::cell::Cell::new(None));
    let repeated = std::rc::Rc::new(std::cell::Cell::new(false));
    let sent = flight.clone();
    browser.lose_sent = Box::new(move |packet| {
        let is_hello = packet.first() == Some(&22) && packet.get(13) == Some(&2);
        if demux(packet) == Packet::Dtls && (is_hello || !sent.borrow().is_empty()) {
            sent.borrow_mut().push(packet.to_vec());
        }
        false
    });
    let (seen, at, done) = (flight.clone(), lost.clone(), repeated.clone());
    browser.lose_received = Box::new(move |packet| {
        let loses = demux(packet) == Packet::Dtls && !seen.borrow().is_empty() && !done.get();
        if loses && at.get().is_none() {
            at.set(Some(Instant::now()));
        }
        loses
    });
    wait_for(&mut browser, "the flight is lost", |_| {
        lost.get().is_some_and(|at| at.elapsed() >= Duration::from_millis(50))
    });
    flight.borrow().iter().for_each(|packet| browser.send(packet));
    repeated.set(true);
    wait_for(&mut browser, "it is connected", |browser| browser.connected);
}

/// Whether a packet is a connectivity check.
fn is_check(packet: &[u8]) -> bool {
    packet.starts_with(&[0, 1])
}

/// The browser's own next check may take seconds: its media, or its reports, make the edge ask.
fn the_edge_asks_where_media_come_from(media: &[(MediaKind, Direction)]) {
    let mut joined = Joined::new(Way::Udp, media, &json!({}));
    joined.plain[0].send(&Plain::rtp(VP8, 99, 0, 0, KEY));
    wait_for(&mut joined.browser, "a picture", |browser| browser.packets.len() == 1);
    joined.browser.lose_sent = Box::new(is_check);
    let address = joined.browser.rebind().to_string();
    let deadline = Instant::now() + PATIENCE;
    let mut number = 0;
    while joined.view()["remote"] != address.as_str() {
        assert!(Instant::now() < deadline, "{}", joined.view());
        number += 1;
        joined.plain[0].send(&Plain::rtp(VP8, 99, number, 3000 * u32::from(number), DELTA));
        if media[0].1 == Direction::SendRecv {
            let timestamp = 3000 * u32::from(number);
            joined
                .browser
                .write(joined.mids[0], VP8, u64::from(number), timestamp, ExtensionValues::default(), DELTA);
        }
        joined.browser.advance();
    }
    let before = joined.browser.packets.len();
    joined.plain[0].send(&Plain::rtp(VP8, 99, number + 1, 3000 * u32::from(number + 1), DELTA));
    wait_for(&mut joined.browser, "pictures at the new address", |browser| {
        browser.packets.len() > before
    });
    assert_eq!(joined.view()["state"], "connected");
}

#[test]
fn the_edge_asks_where_a_browsers_media_come_from() {
    the_edge_asks_where_media_come_from(&[(MediaKind::Video, Direction::SendRecv)]);
}

#[test]
fn the_edge_asks_where_a_viewers_reports_come_from() {
    the_edge_asks_where_media_come_from(&[(MediaKind::Video, Direction::RecvOnly)]);
}

/// A check of the browser's, as Firefox sends for consent: it nominates nothing.
fn consent_check(joined: &Joined, offer: &str) -> Vec<u8> {
    let answer = joined.answer["answer"].as_str().unwrap();
    let name = format!("{}:{}", attribute(answer, "a=ice-ufrag:"), attribute(offer, "a=ice-ufrag:"));
    let crypto = str0m::crypto::from_feature_flags();
    let message = StunMessage::binding_request(&name, TransId::new(), true, 7, 1, false);
    let mut octets = vec![0; 1024];
    let key = attribute(answer, "a=ice-pwd:").as_bytes();
    let length = message.to_bytes(Some(key), &mut octets, |key, parts| crypto.sha1_hmac_provider.sha1_hmac(key, parts));
    octets.truncate(length.unwrap());
    octets
}

/// Firefox nominates once. After a rebinding only its checks for consent come, and its media.
#[test]
fn media_from_an_address_that_is_known_but_not_nominated_makes_the_edge_ask() {
    let (mut joined, offer) = Joined::with_offer(Way::Udp, BOTH, &json!({}));
    joined.plain[1].send(&Plain::rtp(VP8, 99, 0, 0, KEY));
    wait_for(&mut joined.browser, "a picture", |browser| browser.packets.len() == 1);
    joined.browser.lose_sent = Box::new(is_check);
    let address = joined.browser.rebind().to_string();
    let check = consent_check(&joined, &offer);
    joined.browser.send(&check);
    let deadline = Instant::now() + PATIENCE;
    let mut number = 0;
    while joined.view()["remote"] != address.as_str() {
        assert!(Instant::now() < deadline, "{}", joined.view());
        number += 1;
        let values = ExtensionValues::default();
        joined
            .browser
            .write(joined.mids[1], VP8, u64::from(number), 3000 * number, values, DELTA);
        joined.browser.advance();
    }
    joined.plain[1].send(&Plain::rtp(VP8, 99, 1, 3000, DELTA));
    wait_for(&mut joined.browser, "a picture at the new address", |browser| {
        browser.packets.len() == 2
    });
}

/// More copies of a browser's checks than addresses of a session are remembered.
#[test]
fn copies_of_checks_take_no_address_from_the_browser() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let checks = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let copies = checks.clone();
    joined.browser.lose_sent = Box::new(move |packet| {
        if is_check(packet) {
            copies.borrow_mut().push(packet.to_vec());
        }
        false
    });
    wait_for(&mut joined.browser, "a check", |_| !checks.borrow().is_empty());
    joined.browser.write(joined.mids[1], VP8, 1, 0, ExtensionValues::default(), KEY);
    joined.await_plain(1, "a picture of the browser", is_rtp);
    let remote = joined.view()["remote"].clone();
    let check = checks.borrow()[0].clone();
    let strangers: Vec<UdpSocket> = (0..10).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for stranger in &strangers {
        stranger.send_to(&check, joined.edge.address).unwrap();
    }
    let edge = &joined.edge;
    wait_for(&mut joined.browser, "all copies", |_| edge.dropped("copies") == 10);
    // The browser's address still belongs to the session, although no further check comes.
    joined.browser.lose_sent = Box::new(is_check);
    let unknown = joined.edge.dropped("unknown_address");
    joined.browser.write(joined.mids[1], VP8, 2, 3000, ExtensionValues::default(), KEY);
    joined.await_plain(1, "a picture after the copies", is_rtp);
    assert_eq!(joined.edge.dropped("unknown_address"), unknown);
    assert_eq!(joined.view()["remote"], remote);
    for stranger in &strangers {
        stranger.set_nonblocking(true).unwrap();
        assert!(stranger.recv(&mut [0; 100]).is_err(), "a stranger gets no answer");
    }
}

/// Media of a silent browser, copied from another address: that address is asked, and has no key to answer with.
#[test]
fn a_stranger_who_copies_media_is_asked_and_gets_nothing() {
    let mut joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let sent = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let copies = sent.clone();
    joined.browser.lose_sent = Box::new(move |packet| {
        copies.borrow_mut().push(packet.to_vec());
        false
    });
    joined.browser.write(joined.mids[1], VP8, 1, 0, ExtensionValues::default(), KEY);
    joined.await_plain(1, "a picture of the browser", is_rtp);
    let remote = joined.view()["remote"].clone();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let media = sent.borrow().iter().find(|packet| is_rtp(packet)).unwrap().clone();
    let deadline = Instant::now() + PATIENCE;
    // The browser is not advanced, and so says nothing.
    let check = loop {
        assert!(Instant::now() < deadline, "no check comes");
        stranger.send_to(&media, joined.edge.address).unwrap();
        let mut buffer = [0; 2048];
        if let Ok(size) = stranger.recv(&mut buffer) {
            assert!(is_check(&buffer[..size]), "nothing but checks comes");
            break buffer[..size].to_vec();
        }
    };
    // An answer without the key, and one whose key is wrong.
    let mut answer = [&[1, 1, 0, 0], &check[4..20]].concat();
    stranger.send_to(&answer, joined.edge.address).unwrap();
    answer[3] = 24;
    answer.extend([0, 8, 0, 20]);
    answer.extend([7; 20]);
    stranger.send_to(&answer, joined.edge.address).unwrap();
    joined.plain[1].send(&Plain::rtp(VP8, 99, 1, 0, KEY));
    wait_for(&mut joined.browser, "a picture", |browser| !browser.packets.is_empty());
    assert_eq!(joined.view()["remote"], remote);
    let mut buffer = [0; 2048];
    while let Ok(size) = stranger.recv(&mut buffer) {
        assert!(is_check(&buffer[..size]), "nothing but checks comes");
    }
}

#[test]
fn ice_begins_anew_by_an_offer() {
    ice_begins_anew(&[(MediaKind::Video, Direction::SendRecv)], by_offer);
}

#[test]
fn ice_begins_anew_by_credentials_alone() {
    ice_begins_anew(&[(MediaKind::Video, Direction::SendRecv)], by_credentials);
}

/// Nothing but connectivity checks, feedback and answers to them comes from such a browser.
#[test]
fn ice_begins_anew_of_who_only_watches() {
    ice_begins_anew(&[(MediaKind::Video, Direction::RecvOnly)], by_credentials);
}

#[test]
fn what_are_no_credentials_begins_nothing() {
    let joined = Joined::new(Way::Udp, BOTH, &json!({}));
    let before = joined.view()["ufrag"].clone();
    for (ufrag, pwd, said) in [
        ("abc", "0123456789012345678901", "ufrag"),
        ("abcd", "012345678901234567890", "pwd"),
        ("ab\r\na=x", "0123456789012345678901", "ufrag"),
        ("abcd", "0123456789 0123456789012", "pwd"),
    ] {
        let path = format!("/v1/sessions/{}/ice", joined.id());
        let (status, answer) = joined.edge.ask("POST", &path, &json!({"ufrag": ufrag, "pwd": pwd}));
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with(said), "{answer}");
    }
    assert_eq!(joined.view()["ufrag"], before);
    let nobody = format!("/v1/sessions/{}/ice", "0".repeat(32));
    let given = json!({"ufrag": "abcd", "pwd": "0123456789012345678901"});
    assert_eq!(joined.edge.ask("POST", &nobody, &given).0, 404);
}

#[test]
fn another_certificate_than_the_offers_is_refused() {
    let edge = Edge::start(&json!({}));
    let mut browser = Browser::new(Way::Udp, edge.address);
    let (offer, pending, _) = browser.offer(BOTH);
    let at = offer.find("a=fingerprint:sha-256 ").unwrap() + "a=fingerprint:sha-256 ".len();
    let end = at + offer[at..].find("\r\n").unwrap();
    let forged = offer.replace(&offer[at..end], &offer[at..end].chars().rev().collect::<String>());
    let answer = edge.create("ann", &forged);
    browser.accept(pending, answer["answer"].as_str().unwrap());
    let path = format!("/v1/sessions/{}", answer["session"].as_str().unwrap());
    wait_for(&mut browser, "the session ends", |_| edge.ask("GET", &path, &Value::Null).0 == 404);
}

#[test]
fn checks_without_the_key_get_no_answer_and_are_limited() {
    let edge = Edge::start(&json!({"unknown_packets": 5}));
    let mut browser = Browser::new(Way::Udp, edge.address);
    let (offer, pending, _) = browser.offer(BOTH);
    let answer = edge.create("ann", &offer);
    let text = answer["answer"].as_str().unwrap();
    let password = text.lines().find_map(|line| line.strip_prefix("a=ice-pwd:")).unwrap();
    browser.accept(pending, &text.replace(password, "000000000000000000000000"));
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        browser.advance();
    }
    assert!(edge.dropped("wrong_key") > 0);
    assert_eq!(edge.session(answer["session"].as_str().unwrap())["state"], "new");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut check = vec![
        0, 1, 0, 12, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 6, 0, 7,
    ];
    check.extend(b"who:is0\0");
    check[3] = u8::try_from(check.len() - 20).unwrap();
    for _ in 0..50 {
        stranger.send_to(&check, edge.address).unwrap();
    }
    stranger
        .send_to(&[0x80, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0], edge.address)
        .unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(stranger.recv_from(&mut [0; 100]).is_err(), "who is nobody's gets no answer");
    assert!(edge.dropped("limited") > 0 && edge.dropped("unknown_address") > 0);
}

#[test]
fn limits_are_named() {
    let edge = Edge::start(&json!({"sessions": 1, "media": 2}));
    let mut browser = Browser::new(Way::Udp, edge.address);
    let three = [(MediaKind::Video, Direction::RecvOnly); 3];
    let (offer, ..) = browser.offer(&three);
    let create = |offer: &str| {
        edge.ask(
            "POST",
            "/v1/sessions",
            &json!({"conference": "a", "participant": "b", "offer": offer}),
        )
    };
    let (status, body) = create(&offer);
    assert_eq!(status, 429);
    assert!(body["error"].as_str().unwrap().contains("limits.media"), "{body}");
    let (offer, ..) = Browser::new(Way::Udp, edge.address).offer(BOTH);
    assert_eq!(create(&offer).0, 201);
    let (status, body) = create(&offer);
    assert_eq!(status, 429);
    assert!(body["error"].as_str().unwrap().contains("limits.sessions"), "{body}");
    for (body, said) in [
        (json!({"conference": "a", "participant": "b", "offer": "v=0"}), "offer"),
        (json!({"conference": "a"}), "participant"),
    ] {
        let edge = Edge::start(&json!({}));
        let (status, body) = edge.ask("POST", "/v1/sessions", &body);
        assert_eq!(status, 400);
        assert!(body["error"].as_str().unwrap().contains(said), "{body}");
    }
    assert_eq!(edge.ask("GET", "/v1/nothing", &Value::Null).0, 404);
    assert_eq!(edge.ask("GET", "/v1/sessions/1", &Value::Null).0, 404);
}

#[test]
fn tcp_connections_are_limited() {
    let edge = Edge::start(&json!({"connections_per_address": 2}));
    let open: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(edge.address).unwrap()).collect();
    let deadline = Instant::now() + PATIENCE;
    while edge.dropped("connections_refused") < 3 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut first = &open[0];
    std::io::Write::write_all(&mut first, &[0xFF, 0xFF, 0, 0]).unwrap();
    while edge.dropped("connections_broken") < 1 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}
