//! What the conference maps say, read from the maps alone: for each stream the copies that its packets get.

use super::Process;
use shunt_abi::replicate::{conference_mark, copy, copy_wide, list_device, list_element, list_head, stream, stream_flag, stream_key};
use shunt_net::Endpoint;
use shunt_xdp::{Hash, Shared, bytes_of, from_bytes};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// By source port of the stream: for each of its trees the copies in the order of the list, each with its interface and destination.
pub type Copies = BTreeMap<u16, Vec<Vec<(u32, Endpoint)>>>;

fn part<T: shunt_xdp::Plain>(word: u64) -> T {
    from_bytes(bytes_of(&word)).unwrap()
}

pub fn copies(process: &Process) -> Copies {
    let map = |name: &str| process.map(name);
    let mark = Shared::<conference_mark>::map(map("c_layout"), 1).unwrap().load(0);
    let index = Hash::<stream_key, u32>::new(map("c_index")).unwrap();
    let streams = Shared::<stream>::map(map("c_streams"), mark.streams as usize).unwrap();
    let lists = Shared::<u64>::map(map("c_lists"), mark.words as usize).unwrap();
    let records = Shared::<copy>::map(map("c_copies"), mark.copies as usize).unwrap();
    let wides = Shared::<copy_wide>::map(map("c_wides"), mark.copies as usize).unwrap();
    let outputs = Hash::<u32, u32>::new(map("c_outputs")).unwrap();
    let read = |at: u64| lists.load(at as usize);
    let one = |at: u64| -> Vec<(u32, Endpoint)> {
        if at == 0 {
            return Vec::new();
        }
        let head: list_head = part(read(at));
        assert!(
            outputs.get(&head.outputs.into()).unwrap().is_some(),
            "row {} has no device map",
            head.outputs
        );
        let devices: Vec<list_device> = (0..u64::from(head.devices)).map(|n| part(read(at + 1 + n))).collect();
        let elements = (0..u64::from(head.copies)).map(|n| {
            let device = devices.iter().rev().find(|device| u64::from(device.first) <= n).unwrap();
            let element: list_element = part(read(at + 1 + u64::from(head.devices) + n));
            let record = records.load(element.copy as usize);
            assert_eq!(record.valid, 1, "a list names a record that is not in force");
            let addr: IpAddr = if record.flags & 1 == 0 {
                record.daddr.to_ne_bytes().into()
            } else {
                let words = wides.load(element.copy as usize).daddr;
                <[u8; 16]>::try_from(words.map(u32::to_ne_bytes).concat()).unwrap().into()
            };
            (device.ifindex, Endpoint::new(addr, u16::from_be(record.dport)))
        });
        elements.collect()
    };
    let mut found = BTreeMap::new();
    for (key, row) in index.elements().unwrap() {
        let record = streams.load(row as usize);
        assert_eq!(bytes_of(&record.key), bytes_of(&key));
        let (at, flags) = (record.turn & 0xffff_ffff, (record.turn >> 32) as u32);
        let trees = u64::from(flags & stream_flag::STREAM_TREES.0) >> 8;
        let lists = if trees < 2 {
            vec![one(at)]
        } else {
            (0..trees).map(|n| one(read(at + n))).collect()
        };
        found.insert(u16::from_be(key.flow.sport), lists);
    }
    found
}
