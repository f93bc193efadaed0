//! Frames to another MAC address than the receiving interface's.

use crate::frame::{ICMP, MAC_HOST, MAC_OWN, Mac, TooBig, Udp};
use crate::plane::{DROP, Entry, LOOPBACK, PASS, Plane, REDIRECT, Setup};
use crate::relaying::{check_vectors, relayed, sent, v4, v6};
use shunt_abi::relay::{interface_flag, reason, size};

const OTHER: Mac = [2, 0, 0, 0, 0, 0x77];
const LOCAL: u32 = interface_flag::INTERFACE_LOCAL_SENDERS.0;

fn to(packet: &Udp, mac: Mac) -> Vec<u8> {
    packet.with(|packet| packet.macs = (mac, MAC_HOST)).frame()
}

fn plane(interface: Option<(Mac, u32)>) -> Option<Plane> {
    let mut plane = Plane::load(Setup {
        interface,
        ..Setup::default()
    })?;
    plane.insert(&v4());
    plane.insert(&v6());
    plane.media("10.1.0.1", 16384, 32767);
    Some(plane)
}

#[test]
fn only_frames_to_the_own_address_are_relayed() {
    let Some(mut plane) = plane(Some((MAC_OWN, LOCAL))) else { return };
    for entry in [v4(), v6()] {
        let packet = sent(&entry);
        let left = plane.expect("own address", &to(&packet, MAC_OWN), REDIRECT, reason::RELAYED);
        assert_eq!(left, relayed(&entry, &packet).frame());
        for at in 0..6 {
            let mut other = MAC_OWN;
            other[at] ^= 4;
            plane.expect("one bit of the address differs", &to(&packet, other), PASS, reason::NOT_FOR_US);
        }
        plane.expect("broadcast", &to(&packet, [0xff; 6]), PASS, reason::NOT_UNICAST);
        let mut group = MAC_OWN;
        group[0] |= 1;
        plane.expect("multicast", &to(&packet, group), PASS, reason::NOT_UNICAST);
    }
    assert_eq!(plane.detail(v4().dst).source_mismatch, 0);
}

#[test]
fn frames_to_other_addresses_are_neither_learned_from_nor_dropped_nor_counted() {
    let Some(mut plane) = plane(Some((MAC_OWN, LOCAL))) else { return };
    let miss = sent(&v4()).with(|packet| packet.dst.set_port(30000));
    let mismatch = sent(&v4()).with(|packet| packet.src.set_port(4999));
    let options = mismatch.with(|packet| packet.options = vec![1; 8]);
    for (what, packet) in [("miss", &miss), ("mismatch", &mismatch), ("options", &options)] {
        plane.expect(what, &to(packet, OTHER), PASS, reason::NOT_FOR_US);
    }
    let mut error = TooBig::about(&relayed(&v4(), &sent(&v4())), "10.2.0.9", 600).frame();
    error[..6].copy_from_slice(&OTHER);
    assert_eq!(error[23], ICMP);
    plane.expect("an ICMP error", &error, PASS, reason::NOT_FOR_US);
    assert!(plane.notices().is_empty());
    assert!(plane.reports().is_empty());
    assert_eq!(plane.detail(v4().dst).source_mismatch, 0);
    // The same packets to the own address do all of that.
    plane.expect("miss", &to(&miss, MAC_OWN), PASS, reason::MISS);
    plane.expect("mismatch", &to(&mismatch, MAC_OWN), DROP, reason::SOURCE_MISMATCH);
    plane.expect("options", &to(&options, MAC_OWN), DROP, reason::SOURCE_MISMATCH);
    assert_eq!(plane.notices().len(), 4);
    assert_eq!(plane.detail(v4().dst).source_mismatch, 4);
}

#[test]
fn the_source_filter_applies_to_frames_to_a_group_address() {
    let Some(plane) = plane(Some((MAC_OWN, LOCAL))) else { return };
    plane.block("10.1.0.66", 0, true);
    let mismatch = sent(&v4()).with(|packet| packet.src.set_port(4999));
    let miss = sent(&v4()).with(|packet| packet.dst.set_port(30000));
    let blocked = miss.with(|packet| packet.src = "10.1.0.66:4000".parse().unwrap());
    let options = mismatch.with(|packet| packet.options = vec![1; 8]);
    let error = TooBig::about(&relayed(&v4(), &sent(&v4())), "10.2.0.9", 600).frame();
    for group in [[0xff; 6], [1, 0, 0x5e, 1, 1, 1]] {
        plane.expect("another source", &to(&mismatch, group), DROP, reason::SOURCE_MISMATCH);
        plane.expect("another source, IP options", &to(&options, group), DROP, reason::SOURCE_MISMATCH);
        plane.expect("blocklist", &to(&blocked, group), DROP, reason::BLOCKED);
        plane.expect("no filter", &to(&miss, group), PASS, reason::NOT_UNICAST);
        let mut error = error.clone();
        error[..6].copy_from_slice(&group);
        plane.expect("an ICMP error", &error, PASS, reason::NOT_UNICAST);
    }
    assert!(plane.notices().is_empty());
    assert!(plane.reports().is_empty());
}

#[test]
fn an_interface_without_a_row_or_an_address_takes_any_unicast_address() {
    for interface in [None, Some(([0; 6], LOCAL))] {
        let Some(plane) = plane(interface) else { return };
        for mac in [MAC_OWN, OTHER] {
            let left = plane.expect("unicast", &to(&sent(&v4()), mac), REDIRECT, reason::RELAYED);
            assert_eq!(left, relayed(&v4(), &sent(&v4())).frame());
        }
        plane.expect("broadcast", &to(&sent(&v4()), [0xff; 6]), PASS, reason::NOT_UNICAST);
    }
}

#[test]
fn a_row_is_found_behind_those_of_other_interfaces() {
    let Some(mut plane) = plane(None) else { return };
    plane.insert(&Entry::new("10.1.0.2:4006", "10.1.0.1:20006", "[fd02::1]:20002", "[fd02::2]:6000"));
    plane.insert(&Entry::new("[fd01::2]:4004", "[fd01::1]:20004", "10.2.0.1:20002", "10.2.0.2:6000"));
    let home = LOOPBACK as usize;
    let probes = size::INTERFACE_PROBES.0 as usize;
    for n in 0..probes - 1 {
        plane.interface(home + n, LOOPBACK + size::INTERFACES.0 * (n as u32 + 1), OTHER, 0);
    }
    plane.interface(home + probes - 1, LOOPBACK, MAC_OWN, LOCAL);
    check_vectors(&plane);
    plane.expect("another address", &to(&sent(&v4()), OTHER), PASS, reason::NOT_FOR_US);
    // Beyond the last probe there is no row.
    plane.interface(home + probes - 1, 0, [0; 6], 0);
    plane.interface(home + probes, LOOPBACK, MAC_OWN, LOCAL);
    plane.expect("another address", &to(&sent(&v4()), OTHER), REDIRECT, reason::RELAYED);
}

#[test]
fn frames_to_interfaces_above_are_relayed() {
    let Some(mut plane) = plane(Some((MAC_OWN, LOCAL))) else { return };
    // As keepalived gives its macvlan, and as many as there is room for.
    let above: Vec<Mac> = (0..size::FURTHER_MACS.0 as u8).map(|n| [0, 0, 0x5e, 0, 1, 0x33 + n]).collect();
    plane.expect("before", &to(&sent(&v4()), above[0]), PASS, reason::NOT_FOR_US);
    plane.interfaces_above(LOOPBACK as usize, &above);
    for entry in [v4(), v6()] {
        let packet = sent(&entry);
        for mac in above.iter().chain([&MAC_OWN]) {
            let left = plane.expect("an address above", &to(&packet, *mac), REDIRECT, reason::RELAYED);
            assert_eq!(left, relayed(&entry, &packet).frame());
        }
        plane.expect("another address", &to(&packet, OTHER), PASS, reason::NOT_FOR_US);
        plane.expect("no address", &to(&packet, [0; 6]), PASS, reason::NOT_FOR_US);
        plane.expect("broadcast", &to(&packet, [0xff; 6]), PASS, reason::NOT_UNICAST);
    }
    let miss = sent(&v4()).with(|packet| packet.dst.set_port(30000));
    plane.expect("a miss", &to(&miss, above[1]), PASS, reason::MISS);
    assert_eq!(plane.notices().len(), 2, "learned from");
    plane.insert(&Entry::new("10.1.0.2:4006", "10.1.0.1:20006", "[fd02::1]:20002", "[fd02::2]:6000"));
    plane.insert(&Entry::new("[fd01::2]:4004", "[fd01::1]:20004", "10.2.0.1:20002", "10.2.0.2:6000"));
    check_vectors(&plane);
}
