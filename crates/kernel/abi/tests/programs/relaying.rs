//! Relayed packets: the exact frame that leaves, on the fast path and on the general one.

use crate::frame::{Check, MAC_NEXT, MAC_OUT, Udp, VLAN, rtp};
use crate::plane::{DROP, Entry, PASS, Plane, REDIRECT, Setup};
use shunt_abi::relay::reason;

pub fn v4() -> Entry {
    Entry::new("10.1.0.2:4000", "10.1.0.1:20000", "10.2.0.1:20002", "10.2.0.2:6000")
}

pub fn v6() -> Entry {
    Entry::new("[fd01::2]:4000", "[fd01::1]:20000", "[fd02::1]:20002", "[fd02::2]:6000")
}

fn v4_to_6() -> Entry {
    Entry::new("10.1.0.2:4006", "10.1.0.1:20006", "[fd02::1]:20002", "[fd02::2]:6000")
}

fn v6_to_4() -> Entry {
    Entry::new("[fd01::2]:4004", "[fd01::1]:20004", "10.2.0.1:20002", "10.2.0.2:6000")
}

/// A packet that meets an entry.
pub fn sent(entry: &Entry) -> Udp {
    Udp::new(&entry.src.to_string(), &entry.dst.to_string())
}

/// What has to leave: one hop less, other addresses, all else as it was.
pub fn relayed(entry: &Entry, packet: &Udp) -> Udp {
    packet.with(|packet| {
        packet.src = entry.out_src;
        packet.dst = entry.out_dst;
        packet.macs = (MAC_NEXT, MAC_OUT);
        packet.tags = Vec::new();
        packet.ttl = 64;
    })
}

/// Packets with their entries.
fn vectors() -> Vec<(&'static str, Entry, Udp)> {
    let v4 = v4();
    vec![
        ("IPv4", v4, sent(&v4)),
        ("IPv4, no UDP checksum", v4, sent(&v4).with(|p| p.check = Check::Zero)),
        ("IPv4, wrong UDP checksum", v4, sent(&v4).with(|p| p.check = Check::Off(0x0101))),
        ("IPv4, TTL 2", v4, sent(&v4).with(|p| p.ttl = 2)),
        ("IPv4, TOS", v4, sent(&v4).with(|p| p.tos = 0xb9)),
        ("IPv4, no payload", v4, sent(&v4).with(|p| p.payload = Vec::new())),
        ("IPv4, odd length", v4, sent(&v4).with(|p| p.payload = rtp(1, 159))),
        ("IPv4, tagged", v4, sent(&v4).with(|p| p.tags = vec![(VLAN, 100)])),
        ("IPv6", v6(), sent(&v6())),
        ("IPv6, wrong UDP checksum", v6(), sent(&v6()).with(|p| p.check = Check::Off(0x0101))),
        ("IPv4 to IPv6", v4_to_6(), sent(&v4_to_6())),
        ("IPv6 to IPv4", v6_to_4(), sent(&v6_to_4())),
    ]
}

/// What leaves for each vector. IPv4 packets made from IPv6 have no identification.
fn expected(entry: &Entry, packet: &Udp) -> Vec<u8> {
    let mut frame = relayed(entry, packet).frame();
    if entry.src.is_ipv6() && entry.out_src.is_ipv4() {
        frame[18..20].copy_from_slice(&[0, 0]);
        frame[24..26].copy_from_slice(&[0, 0]);
        let check = !crate::frame::ones_sum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
    frame
}

fn insert_all(plane: &mut Plane) {
    for entry in [v4(), v6(), v4_to_6(), v6_to_4()] {
        plane.insert(&entry);
    }
}

pub fn check_vectors(plane: &Plane) {
    for (what, entry, packet) in vectors() {
        let left = plane.expect(what, &packet.frame(), REDIRECT, reason::RELAYED);
        assert_eq!(left, expected(&entry, &packet), "{what}: the frame that leaves");
    }
}

#[test]
fn packets_leave_as_their_entries_say() {
    let Some(mut plane) = Plane::load(Setup::default()) else { return };
    insert_all(&mut plane);
    check_vectors(&plane);
}

#[test]
fn an_interface_without_a_row_relays_the_same() {
    let setup = Setup {
        interface: None,
        ..Setup::default()
    };
    let Some(mut plane) = Plane::load(setup) else { return };
    insert_all(&mut plane);
    check_vectors(&plane);
}

#[test]
fn an_overflow_entry_and_one_without_a_slot_relay_too() {
    let Some(mut plane) = Plane::load(Setup::default()) else { return };
    plane.insert(&v4());
    let second = Entry::new("10.1.0.3:5000", "10.1.0.1:20000", "10.2.0.1:20010", "10.2.0.2:6010");
    plane.insert_overflow(&second);
    let loose = Entry::new("10.1.0.4:5000", "10.1.0.1:40000", "10.2.0.1:20012", "10.2.0.2:6012");
    plane.insert_loose(&loose);
    for entry in [v4(), second, loose] {
        let left = plane.expect("relayed", &sent(&entry).frame(), REDIRECT, reason::RELAYED);
        assert_eq!(left, expected(&entry, &sent(&entry)));
    }
}

#[test]
fn a_packet_limit_holds_for_slots_and_other_entries() {
    let setup = Setup {
        packet_limit: 4,
        ..Setup::default()
    };
    let Some(mut plane) = Plane::load(setup) else { return };
    plane.insert(&v4());
    let second = Entry::new("10.1.0.3:5000", "10.1.0.1:20000", "10.2.0.1:20010", "10.2.0.2:6010");
    plane.insert_overflow(&second);
    for entry in [v4(), second] {
        for _ in 0..2 {
            plane.expect("within the limit", &sent(&entry).frame(), REDIRECT, reason::RELAYED);
        }
        plane.expect("over the limit", &sent(&entry).frame(), DROP, reason::OVER_LIMIT);
    }
}

#[test]
fn what_cannot_be_relayed_goes_up() {
    let Some(mut plane) = Plane::load(Setup::default()) else { return };
    insert_all(&mut plane);
    plane.media("10.1.0.1", 16384, 32767);
    let v4 = sent(&v4());
    let other_port = |port| v4.with(|p| p.dst.set_port(port));
    plane.expect("a media port without an entry", &other_port(30000).frame(), PASS, reason::MISS);
    plane.expect("no media port", &other_port(40000).frame(), PASS, reason::NOT_MEDIA);
    plane.expect(
        "too long for the next hop",
        &v4.with(|p| p.payload = rtp(1, 1480)).frame(),
        PASS,
        reason::TOO_BIG,
    );
    let long = &v4.frame()[..60];
    plane.expect("an IPv4 length beyond the frame", long, PASS, reason::MALFORMED);
    let mut arp = v4.frame();
    arp[12..14].copy_from_slice(&[8, 6]);
    plane.expect("ARP", &arp, PASS, reason::NOT_IP);
    let mut tcp = v4.frame();
    tcp[23] = 6;
    plane.expect("TCP", &tcp, PASS, reason::NOT_UDP);
}
