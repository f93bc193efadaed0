//! UDP checksums that equal the bare sum of the pseudo header: left to the hardware, or wrong.

use crate::frame::{Check, MAC_OWN, Udp, rtp, udp_sum};
use crate::plane::{Entry, Plane, REDIRECT, Setup};
use crate::relaying::{relayed, sent, v4, v6};
use shunt_abi::relay::interface_flag;

const LOCAL: u32 = interface_flag::INTERFACE_LOCAL_SENDERS.0;

fn entries() -> [Entry; 4] {
    [
        v4(),
        v6(),
        Entry::new("10.1.0.2:4006", "10.1.0.1:20006", "[fd02::1]:20002", "[fd02::2]:6000"),
        Entry::new("[fd01::2]:4004", "[fd01::1]:20004", "10.2.0.1:20002", "10.2.0.2:6000"),
    ]
}

fn plane(interface: Option<(crate::frame::Mac, u32)>) -> Option<Plane> {
    let mut plane = Plane::load(Setup {
        interface,
        ..Setup::default()
    })?;
    for entry in &entries() {
        plane.insert(entry);
    }
    Some(plane)
}

fn partial(entry: &Entry) -> Udp {
    sent(entry).with(|packet| packet.check = Check::Pseudo)
}

#[test]
fn where_no_sender_leaves_it_to_the_hardware_a_wrong_checksum_stays_as_wrong() {
    let Some(plane) = plane(Some((MAC_OWN, 0))) else { return };
    for entry in entries() {
        let frame = partial(&entry).frame();
        let wrong = udp_sum(&frame);
        assert_ne!(wrong, 0xffff);
        for mode in ["native", "generic"] {
            let outcome = plane.run(mode, &frame);
            assert_eq!(outcome.verdict, REDIRECT);
            assert_eq!(udp_sum(&outcome.frame), wrong, "{mode}, {}: as wrong as before", entry.src);
        }
    }
}

#[test]
fn where_senders_leave_it_to_the_hardware_it_is_completed() {
    // An interface without a row counts as one that does.
    for interface in [Some((MAC_OWN, LOCAL)), None] {
        let Some(plane) = plane(interface) else { return };
        for entry in entries() {
            let packet = partial(&entry);
            let native = plane.run("native", &packet.frame());
            assert_eq!(
                (native.verdict, udp_sum(&native.frame)),
                (REDIRECT, 0xffff),
                "native, {}",
                entry.src
            );
            // The generic program's packet is still marked: its field becomes the sum of the new pseudo header.
            let generic = plane.run("generic", &packet.frame());
            let expected = relayed(&entry, &packet).frame();
            let at = if entry.out_src.is_ipv4() { 40 } else { 60 };
            assert_eq!(generic.frame[at..at + 2], expected[at..at + 2], "generic, {}", entry.src);
        }
    }
}

#[test]
fn a_right_checksum_that_has_that_value_stays_right() {
    // With an RTP timestamp that makes the right checksum equal to the sum of the pseudo header.
    let fitting = |entry: &Entry| {
        let frames = (0..=u16::MAX).map(|word| {
            sent(entry).with(|packet| {
                packet.payload = rtp(9, 20);
                packet.payload[6..8].copy_from_slice(&word.to_be_bytes());
            })
        });
        let at = if entry.src.is_ipv4() { 40 } else { 60 };
        let mut frames = frames.filter(|packet| packet.frame()[at..at + 2] == packet.with(|p| p.check = Check::Pseudo).frame()[at..at + 2]);
        frames.next().expect("one of all values of a word fits")
    };
    for flags in [0, LOCAL] {
        let Some(plane) = plane(Some((MAC_OWN, flags))) else { return };
        for entry in entries() {
            let packet = fitting(&entry);
            for mode in ["native", "generic"] {
                let outcome = plane.run(mode, &packet.frame());
                assert_eq!(
                    (outcome.verdict, udp_sum(&outcome.frame)),
                    (REDIRECT, 0xffff),
                    "{mode}, flags {flags}"
                );
            }
        }
    }
}
