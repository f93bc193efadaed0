//! The replicated streams: their rows in the kernel's maps, and an index of them.

use crate::Counted;
use crate::checksum::Sums;
use crate::fault::{Fault, Result};
use crate::free::Free;
use crate::lists::List;
use shunt_abi::relay;
use shunt_abi::replicate::{flow_key, reception, stream, stream_flag, stream_key};
use shunt_net::{Endpoint, FiveTuple, octets};
use shunt_xdp::{Hash, Loaded, Put, Shared, bytes_of, from_bytes};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash as Key;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The largest number of a stream.
pub const MAX_NUMBER: u32 = (1 << 24) - 1;
const MAX_DESCRIPTOR: u8 = shunt_abi::replicate::descriptor::VP9_PAYLOAD.0 as u8;
/// Number of trees of one stream, and ids of header extensions, have four bits.
const FOUR_BITS: u8 = 15;

const TURN: usize = offset_of!(stream, turn);
const COUNTERS: [usize; 3] = [offset_of!(stream, packets), offset_of!(stream, bytes), offset_of!(stream, unsent)];
const LAST: usize = offset_of!(stream, last_jiffies);
const TRACK: usize = offset_of!(stream, track);

const TO_AGENT: u32 = stream_flag::STREAM_TO_AGENT.0;
const TRACKED: u32 = stream_flag::STREAM_TRACKED.0;
const ONE_TREE: u32 = stream_flag::STREAM_ONE_TREE.0;
/// The action is in the second set of words, not in the fields from `number` on. Only user space reads this bit.
const SECOND: u32 = 0x4000;

/// A sender's stream: source, destination and SSRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    pub flow: FiveTuple,
    pub ssrc: u32,
}

/// The parameters of `replicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    pub mgid: u16,
    pub l1_xid: u16,
    pub rid: u16,
    pub l2_xid: u16,
    pub number: u32,
    pub to_agent: bool,
    /// Trees of its layers; 0 and 1 both mean one tree.
    pub trees: u8,
    pub layers: u16,
    pub extension: u8,
    pub descriptor: u8,
    /// Row of rewritten sequence numbers; 0: none.
    pub track: u32,
}

impl Action {
    /// Returns the trees of its packets, lowest layer first.
    #[must_use]
    pub fn mgids(&self) -> Range<u32> {
        let first = u32::from(self.mgid);
        first..first + u32::from(self.trees.max(1))
    }

    /// Returns the flags in a stream's `turn`.
    fn flags(&self) -> u32 {
        let trees = match self.trees {
            0 => 0,
            1 => ONE_TREE,
            trees => u32::from(trees) << 8,
        };
        let set = |condition: bool, flag: u32| if condition { flag } else { 0 };
        u32::from(self.descriptor)
            | set(self.to_agent, TO_AGENT)
            | u32::from(self.extension) << 4
            | trees
            | set(self.track != 0, TRACKED)
            | u32::from(self.layers) << 16
    }

    /// Returns the other fields as words for user space.
    fn words(&self) -> [u32; 4] {
        [self.number, pair(self.mgid, self.rid), pair(self.l1_xid, self.l2_xid), self.track]
    }

    /// The inverse of `flags()` and `words()`.
    fn from_parts(flags: u32, words: [u32; 4]) -> Self {
        let ((mgid, rid), (l1_xid, l2_xid)) = (halves(words[1]), halves(words[2]));
        Self {
            mgid,
            l1_xid,
            rid,
            l2_xid,
            number: words[0],
            to_agent: flags & TO_AGENT != 0,
            trees: if flags & ONE_TREE != 0 { 1 } else { (flags >> 8 & 15) as u8 },
            layers: (flags >> 16) as u16,
            extension: (flags >> 4 & 15) as u8,
            descriptor: (flags & 7) as u8,
            track: if flags & TRACKED != 0 { words[3] } else { 0 },
        }
    }
}

const _: () =
    assert!(offset_of!(stream, rid) == offset_of!(stream, mgid) + 2 && offset_of!(stream, l2_xid) == offset_of!(stream, l1_xid) + 2);

/// Returns two neighbouring 16-bit fields as one word of memory.
fn pair(first: u16, second: u16) -> u32 {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

fn halves(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_ne_bytes();
    (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
}

/// Returns the position of the words of the action that is not in force: the first or the second set.
fn set_at(second: bool) -> [usize; 4] {
    let first = [
        offset_of!(stream, number),
        offset_of!(stream, mgid),
        offset_of!(stream, l1_xid),
        TRACK,
    ];
    let other = offset_of!(stream, second);
    if second { [other, other + 4, other + 8, other + 12] } else { first }
}

/// Returns an address in a map key: four words, an IPv4 address in the first.
pub fn address_words(addr: IpAddr) -> [u32; 4] {
    let bytes = *octets(addr).padded();
    std::array::from_fn(|n| u32::from_ne_bytes([bytes[n * 4], bytes[n * 4 + 1], bytes[n * 4 + 2], bytes[n * 4 + 3]]))
}

/// The inverse of `address_words()`.
pub fn address_of(words: [u32; 4], v6: bool) -> IpAddr {
    if !v6 {
        return Ipv4Addr::from(words[0].to_ne_bytes()).into();
    }
    let mut bytes = [0; 16];
    for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ipv6Addr::from(bytes).into()
}

fn raw(key: &StreamKey) -> stream_key {
    let FiveTuple { src, dst } = key.flow;
    stream_key {
        flow: flow_key {
            saddr: address_words(src.addr),
            daddr: address_words(dst.addr),
            sport: src.port.to_be(),
            dport: dst.port.to_be(),
            version: if key.flow.is_v6() { 6 } else { 4 },
        },
        ssrc: key.ssrc.to_be(),
        unused: 0,
    }
}

fn cooked(key: &stream_key) -> StreamKey {
    let v6 = key.flow.version == 6;
    let end = |addr, port| Endpoint::new(address_of(addr, v6), u16::from_be(port));
    StreamKey {
        flow: FiveTuple::new(end(key.flow.saddr, key.flow.sport), end(key.flow.daddr, key.flow.dport)),
        ssrc: u32::from_be(key.ssrc),
    }
}

/// A replicated stream.
#[derive(Clone, Debug)]
pub struct Stream {
    pub key: StreamKey,
    pub action: Action,
    /// Which set of its row's words holds the action.
    second: bool,
    pub lists: StreamLists,
}

impl Stream {
    pub fn sums(&self) -> Option<Sums> {
        sums_of(&self.key)
    }
}

/// Returns the sums of a stream's packets as they arrive.
pub fn sums_of(key: &StreamKey) -> Option<Sums> {
    Sums::of(&key.flow.src, &key.flow.dst)
}

/// A stream's lists: of one tree, or of several with the words that locate them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamLists {
    /// Position of those words; 0: there is one list.
    pub top: u32,
    pub parts: Vec<List>,
}

impl StreamLists {
    /// Returns the value for `turn`.
    fn head(&self) -> u32 {
        if self.top != 0 {
            self.top
        } else {
            self.parts.first().map_or(0, |list| list.at)
        }
    }
}

/// The streams that a change affects.
#[derive(Default)]
struct Finder<K>(HashMap<K, BTreeSet<u32>>);

impl<K: Key + Eq> Finder<K> {
    fn add(&mut self, key: K, row: u32) {
        self.0.entry(key).or_default().insert(row);
    }

    fn remove(&mut self, key: &K, row: u32) {
        if let Some(rows) = self.0.get_mut(key) {
            rows.remove(&row);
            if rows.is_empty() {
                self.0.remove(key);
            }
        }
    }

    fn rows(&self, key: K) -> impl Iterator<Item = u32> {
        self.0.get(&key).into_iter().flatten().copied()
    }
}

/// All streams, numbered as the rows of the kernel's maps.
pub struct Streams {
    records: Shared<stream>,
    receptions: Shared<reception>,
    index: Hash<stream_key, u32>,
    by_key: HashMap<StreamKey, u32>,
    slab: Vec<Option<Stream>>,
    by_tree: Finder<u32>,
    by_number: Finder<u32>,
    by_prune: Finder<u16>,
    free: Free,
    capacity: u32,
}

impl Streams {
    pub fn new(loaded: &Loaded, capacity: u32) -> shunt_xdp::Result<Self> {
        Ok(Self {
            records: Shared::map(loaded.map("c_streams")?, capacity as usize)?,
            receptions: Shared::map(loaded.map("c_receptions")?, capacity as usize)?,
            index: Hash::new(loaded.map("c_index")?)?,
            by_key: HashMap::new(),
            slab: Vec::new(),
            by_tree: Finder::default(),
            by_number: Finder::default(),
            by_prune: Finder::default(),
            free: Free::new(0, capacity),
            capacity,
        })
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn keys(&self) -> impl Iterator<Item = &StreamKey> {
        self.by_key.keys()
    }

    /// Returns the stream's row.
    pub fn row(&self, key: &StreamKey) -> Result<u32> {
        self.by_key
            .get(key)
            .copied()
            .ok_or_else(|| Fault::NotFound("The stream is not replicated".into()))
    }

    pub fn has(&self, key: &StreamKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub fn at(&self, row: u32) -> Option<&Stream> {
        self.slab.get(row as usize)?.as_ref()
    }

    pub fn at_mut(&mut self, row: u32) -> Option<&mut Stream> {
        self.slab.get_mut(row as usize)?.as_mut()
    }

    /// Returns the rows in use, including retired ones.
    pub fn used(&self) -> usize {
        self.capacity as usize - self.free.left()
    }

    /// Returns the rows of the streams that enter a tree.
    pub fn of_tree(&self, mgid: u16) -> impl Iterator<Item = u32> {
        self.by_tree.rows(mgid.into())
    }

    /// Returns the rows of the streams with a number.
    pub fn of_number(&self, number: u32) -> impl Iterator<Item = u32> {
        self.by_number.rows(number)
    }

    /// Returns the rows of the streams with an L2 XID.
    pub fn of_prune(&self, l2_xid: u16) -> impl Iterator<Item = u32> {
        self.by_prune.rows(l2_xid)
    }

    fn link(&mut self, row: u32, action: &Action) {
        for mgid in action.mgids() {
            self.by_tree.add(mgid, row);
        }
        self.by_number.add(action.number, row);
        self.by_prune.add(action.l2_xid, row);
    }

    fn unlink(&mut self, row: u32, action: &Action) {
        for mgid in action.mgids() {
            self.by_tree.remove(&mgid, row);
        }
        self.by_number.remove(&action.number, row);
        self.by_prune.remove(&action.l2_xid, row);
    }

    /// Checks an action.
    ///
    /// # Errors
    /// `Invalid`, `NoSpace`.
    pub fn check(key: &StreamKey, action: &Action, tracks: u32) -> Result<()> {
        let invalid = |text: String| Err(Fault::Invalid(text));
        if key.flow.src.addr.is_ipv6() != key.flow.dst.addr.is_ipv6() {
            return invalid("The stream's addresses are not both IPv4 or both IPv6".into());
        }
        if action.number > MAX_NUMBER {
            return invalid(format!("The number {} is not in 0..{MAX_NUMBER}", action.number));
        }
        if action.descriptor > MAX_DESCRIPTOR {
            return invalid(format!("The descriptor {} is none of 0..{MAX_DESCRIPTOR}", action.descriptor));
        }
        if action.trees > FOUR_BITS || action.extension > FOUR_BITS {
            return invalid(format!("Trees and extension are at most {FOUR_BITS}"));
        }
        let last = action.mgids().end - 1;
        if last > u32::from(u16::MAX) {
            return invalid(format!("There is no tree {last}"));
        }
        if action.track > tracks {
            let text = format!(
                "There is room for {tracks} streams with rewritten numbers, and the track is {}",
                action.track
            );
            return Err(Fault::NoSpace(text));
        }
        Ok(())
    }

    /// Allocates a row.
    pub fn take(&mut self) -> Option<u32> {
        self.free.take()
    }

    /// Frees a row that no program reads any more.
    pub fn give(&mut self, row: u32) {
        self.free.give(row);
    }

    /// Writes a stream to a free row, and then to the index. Returns false if the index is full. `now`: the kernel's tick.
    ///
    /// # Errors
    /// The kernel rejects the write for another reason than space.
    pub fn insert(&mut self, row: u32, key: StreamKey, action: Action, lists: StreamLists, now: u32) -> Result<bool> {
        let index = row as usize;
        let record = stream {
            key: raw(&key),
            last_jiffies: now,
            number: action.number,
            mgid: action.mgid,
            rid: action.rid,
            l1_xid: action.l1_xid,
            l2_xid: action.l2_xid,
            track: action.track,
            ..Default::default()
        };
        self.records.store(index, &record);
        self.forget_reception(row, now);
        self.records
            .u64_at(index, TURN)
            .store(turn(lists.head(), action.flags()), Ordering::Release);
        if self.index.put(&raw(&key), &row)? == Put::Full {
            return Ok(false);
        }
        self.remember(
            row,
            Stream {
                key,
                action,
                second: false,
                lists,
            },
        );
        Ok(true)
    }

    fn remember(&mut self, row: u32, stream: Stream) {
        let index = row as usize;
        if self.slab.len() <= index {
            self.slab.resize_with(index + 1, || None);
        }
        self.link(row, &stream.action);
        self.by_key.insert(stream.key, row);
        self.slab[index] = Some(stream);
    }

    /// Switches a stream's packets to this action and these lists. Returns its former lists.
    ///
    /// The action is written beside the one in force, and both change with the store of `turn`. A process that adopts the maps after a kill
    /// finds either of them complete.
    pub fn modify(&mut self, row: u32, action: Action, lists: StreamLists) -> Option<StreamLists> {
        let stream = self.slab.get_mut(row as usize)?.as_mut()?;
        let (index, before, second) = (row as usize, stream.action, !stream.second);
        let words = action.words();
        for (at, word) in set_at(second).into_iter().zip(words) {
            if at != TRACK {
                self.records.u32_at(index, at).store(word, Ordering::Relaxed);
            }
        }
        // The row that the program reads also belongs to the first set. It must not change while that set is in force.
        let track_later = !stream.second && before.track != 0;
        let track = || {
            if action.track != 0 {
                self.records.u32_at(index, TRACK).store(action.track, Ordering::Relaxed);
            }
        };
        if !track_later {
            track();
        }
        let flags = action.flags() | if second { SECOND } else { 0 };
        self.records.u64_at(index, TURN).store(turn(lists.head(), flags), Ordering::Release);
        if track_later {
            track();
        }
        stream.action = action;
        stream.second = second;
        let former = std::mem::replace(&mut stream.lists, lists);
        self.unlink(row, &before);
        self.link(row, &action);
        Some(former)
    }

    /// Switches the packets of a stream with one tree to this list. Returns the former list.
    pub fn turn(&mut self, row: u32, list: List) -> Option<List> {
        let stream = self.slab.get_mut(row as usize)?.as_mut()?;
        let former = std::mem::replace(stream.lists.parts.first_mut()?, list);
        let word = self.records.u64_at(row as usize, TURN);
        let flags = (word.load(Ordering::Relaxed) >> 32) as u32;
        word.store(turn(list.at, flags), Ordering::Release);
        Some(former)
    }

    /// Removes a stream from the index. Its row is not free yet.
    ///
    /// # Errors
    /// `NotFound`, or the kernel rejects the deletion.
    pub fn delete(&mut self, key: &StreamKey) -> Result<(u32, StreamLists)> {
        let row = self.row(key)?;
        self.index.delete(&raw(key))?;
        self.by_key.remove(key);
        let stream = self.slab.get_mut(row as usize).and_then(Option::take);
        if let Some(stream) = &stream {
            self.unlink(row, &stream.action);
        }
        Ok((row, stream.map(|stream| stream.lists).unwrap_or_default()))
    }

    /// Returns the counters of a stream. `now`: the kernel's tick.
    pub fn count(&self, row: u32, now: u32) -> Counted {
        let index = row as usize;
        let [packets, bytes, lost] = COUNTERS.map(|at| self.records.u64_at(index, at).load(Ordering::Relaxed));
        let last = self.records.u32_at(index, LAST).load(Ordering::Relaxed);
        Counted {
            packets,
            bytes,
            lost,
            idle_ticks: Some(now.wrapping_sub(last)),
        }
    }

    /// Sets a stream's counters to 0.
    pub fn reset(&self, row: u32, now: u32) {
        for at in COUNTERS {
            self.records.u64_at(row as usize, at).store(0, Ordering::Relaxed);
        }
        self.forget_reception(row, now);
    }

    fn forget_reception(&self, row: u32, now: u32) {
        let mut fresh = reception::default();
        fresh.slot.last_jiffies = now;
        self.receptions.store(row as usize, &fresh);
    }

    /// Returns the reception of a stream, as from a relay entry's records.
    pub fn reception(&self, row: u32) -> (relay::slot, relay::detail) {
        let found = self.receptions.load(row as usize);
        let bytes = bytes_of(&found);
        // The same records under the names of the relay's object.
        let slot = from_bytes(&bytes[offset_of!(reception, slot)..]);
        let detail = from_bytes(&bytes[offset_of!(reception, detail)..]);
        (slot.unwrap_or_default(), detail.unwrap_or_default())
    }

    // Adoption

    /// Takes over the streams of a former process. `lists` converts the position in each `turn`. Drops streams that make no sense.
    pub fn adopt(&mut self, mut lists: impl FnMut(u32, &Action) -> Option<StreamLists>) -> Result<()> {
        for (key, row) in self.index.elements()? {
            let index = row as usize;
            let known = row < self.capacity && bytes_of(&self.records.load(index).key) == bytes_of(&key) && self.at(row).is_none();
            if !known {
                tracing::error!("the stream {:?} has no row of its own: it is forgotten", cooked(&key));
                self.index.delete(&key)?;
                continue;
            }
            let turned = self.records.u64_at(index, TURN).load(Ordering::Relaxed);
            let (at, flags) = (turned as u32, (turned >> 32) as u32);
            let second = flags & SECOND != 0;
            let words = set_at(second).map(|at| self.records.u32_at(index, at).load(Ordering::Relaxed));
            let action = Action::from_parts(flags, words);
            if action.track != 0 {
                self.records.u32_at(index, TRACK).store(action.track, Ordering::Relaxed);
            }
            let lists = lists(at, &action).unwrap_or_else(|| {
                tracing::error!("the lists of row {row} overlap others: its packets have no copies until they are made anew");
                self.records.u64_at(index, TURN).store(turn(0, flags), Ordering::Release);
                StreamLists {
                    top: 0,
                    parts: vec![List::default(); action.mgids().len()],
                }
            });
            let stream = Stream {
                key: cooked(&key),
                action,
                second,
                lists,
            };
            self.remember(row, stream);
        }
        let highest = self.slab.len().checked_sub(1);
        if let Some(highest) = highest {
            let slab = &self.slab;
            self.free
                .claim(|row| slab.get(row as usize).is_some_and(Option::is_some), highest as u32);
        }
        Ok(())
    }

    /// Returns all rows with a stream.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.slab).filter_map(|(row, stream)| stream.is_some().then_some(row))
    }
}

fn turn(at: u32, flags: u32) -> u64 {
    u64::from(flags) << 32 | u64::from(at)
}
