//! Conference packets on arrival: which are copied, and what becomes of their UDP checksum. What leaves is for live frames.

use crate::frame::{Check, MAC_HOST, MAC_OWN, Mac, Udp};
use crate::plane::{LOOPBACK, PASS, Plane, REDIRECT, Setup, key_of};
use shunt_abi::REPLICATE_OBJECT;
use shunt_abi::relay::{interface_flag, reason};
use shunt_abi::replicate::{flow_key, list_device, list_element, list_head, stream, stream_key};
use shunt_xdp::{DeviceMap, Hash, Shared, bytes_of, from_bytes, set_inner_map};

/// Elements of the maps whose size the loader sets.
pub const SIZES: [(&str, usize); 9] = [
    ("c_index", 16),
    ("c_streams", 16),
    ("c_receptions", 16),
    ("c_copies", 16),
    ("c_wides", 16),
    ("c_lists", 64),
    ("c_tracks", 16),
    ("c_receivers", 16),
    ("c_layers", 16),
];

const LOCAL: u32 = interface_flag::INTERFACE_LOCAL_SENDERS.0;
const LIST: u32 = 8;
const OUTPUT: u16 = 1;
const SSRC: u32 = 0xdead_beef;
const MARK_PARTIAL: u8 = 2;

fn packets() -> [Udp; 2] {
    [
        Udp::new("10.1.0.2:4000", "10.1.0.1:20500"),
        Udp::new("[fd01::2]:4000", "[fd01::1]:20500"),
    ]
}

/// A conference with two senders, and one copy of each of their packets.
fn plane(interface: (Mac, u32)) -> Option<(Plane, DeviceMap)> {
    let mut plane = Plane::load(Setup {
        object: REPLICATE_OBJECT,
        interface: Some(interface),
        ..Setup::default()
    })?;
    plane.media("10.1.0.1", 16384, 32767);
    let map = |name: &str| plane.loaded().map(name).expect("a map");
    let index = Hash::<stream_key, u32>::new(map("c_index")).expect("the index of streams");
    let streams = Shared::<stream>::map(map("c_streams"), 16).expect("the streams");
    for (number, packet) in (0u32..).zip(packets()) {
        let flow = key_of(packet.src, packet.dst);
        let key = stream_key {
            flow: flow_key {
                saddr: flow.saddr,
                daddr: flow.daddr,
                sport: flow.sport,
                dport: flow.dport,
                version: flow.version,
            },
            ssrc: SSRC.to_be(),
            unused: 0,
        };
        streams.store(
            number as usize,
            &stream {
                key,
                turn: LIST.into(),
                ..Default::default()
            },
        );
        index.put(&key, &number).expect("a stream");
    }
    let lists = Shared::<u64>::map(map("c_lists"), 64).expect("the lists");
    let head = list_head {
        copies: 1,
        outputs: OUTPUT,
        devices: 1,
        unused: 0,
    };
    let device = list_device {
        ifindex: LOOPBACK,
        first: 0,
    };
    let element = list_element {
        copy: 1,
        ..Default::default()
    };
    for (at, word) in (LIST as usize..).zip([bytes_of(&head), bytes_of(&device), bytes_of(&element)]) {
        lists.store(at, &from_bytes(word).expect("a word"));
    }
    let egress = plane.loaded().program("replicate_copy").expect("the egress program");
    let devices = DeviceMap::new(&[LOOPBACK], egress).expect("a device map");
    set_inner_map(map("c_outputs"), OUTPUT.into(), &devices).expect("an output");
    Some((plane, devices))
}

/// The same packet with the Ethernet header that it came with.
fn unmarked(frame: &[u8], packet: &Udp) -> Vec<u8> {
    [&packet.frame()[..14], &frame[14..]].concat()
}

#[test]
fn only_frames_to_the_own_address_are_copied() {
    let Some((plane, _devices)) = plane((MAC_OWN, LOCAL)) else { return };
    for packet in packets() {
        plane.expect("own address", &packet.frame(), REDIRECT, reason::CONFERENCE);
        let mut other = MAC_OWN;
        other[5] ^= 0x40;
        let frame = packet.with(|packet| packet.macs = (other, MAC_HOST)).frame();
        plane.expect("another address", &frame, PASS, reason::NOT_FOR_US);
    }
}

#[test]
fn a_wrong_checksum_stays_wrong_where_no_sender_leaves_it_to_the_hardware() {
    let Some((plane, _devices)) = plane((MAC_OWN, 0)) else { return };
    for packet in packets() {
        let wrong = packet.with(|packet| packet.check = Check::Pseudo);
        for mode in ["native", "generic"] {
            let outcome = plane.run(mode, &wrong.frame());
            assert_eq!(outcome.verdict, REDIRECT);
            assert_eq!(outcome.frame[6] & MARK_PARTIAL, 0, "{mode}: not taken for one to complete");
            assert_eq!(unmarked(&outcome.frame, &wrong), wrong.frame(), "{mode}");
        }
    }
}

#[test]
fn a_checksum_that_was_left_to_the_hardware_is_completed_once() {
    let Some((plane, _devices)) = plane((MAC_OWN, LOCAL)) else { return };
    for packet in packets() {
        let partial = packet.with(|packet| packet.check = Check::Pseudo);
        let native = plane.run("native", &partial.frame());
        assert_eq!(native.verdict, REDIRECT);
        assert_eq!(unmarked(&native.frame, &packet), packet.frame(), "native: whole");
        let generic = plane.run("generic", &partial.frame());
        assert_eq!(generic.verdict, REDIRECT);
        assert_eq!(generic.frame[6] & MARK_PARTIAL, MARK_PARTIAL, "generic: left to egress");
        assert_eq!(unmarked(&generic.frame, &partial), partial.frame(), "generic: as it was");
    }
}

#[test]
fn packets_of_other_shapes_are_not_copied_but_filtered() {
    let Some((plane, _devices)) = plane((MAC_OWN, LOCAL)) else { return };
    let options = packets()[0].with(|packet| packet.options = vec![1; 8]);
    plane.expect("options", &options.frame(), PASS, reason::HAS_OPTIONS);
    plane.allow("10.1.0.1:20500", &["10.1.0.9"], true);
    plane.expect("options", &options.frame(), crate::plane::DROP, reason::BLOCKED);
    plane.expect("a plain packet", &packets()[0].frame(), REDIRECT, reason::CONFERENCE);
}
