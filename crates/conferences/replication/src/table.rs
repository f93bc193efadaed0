//! The conference tables together: applies a change of one table to the lists that packets walk.

use crate::Counted;
use crate::checksum::Sums;
use crate::copies::{Copies, Name, Rewrite};
use crate::engine::{Engine, Member, Undo};
use crate::fault::{Fault, Result};
use crate::hops::Hops;
use crate::interfaces::Interfaces;
use crate::layers::Layers;
use crate::lists::{Composition, Element, List, Lists, compose};
use crate::maps::{Mark, most_nodes};
use crate::outputs::{OUTPUTS, Outputs};
use crate::round::{Array, Passed, Round};
use crate::saved::{Block, Saved, block_of};
use crate::sequences::Sequences;
use crate::streams::{Action, StreamKey, StreamLists, Streams, sums_of};
use shunt_abi::relay::{detail, slot};
use shunt_abi::replicate::{agent_copy, agent_counts, conference_mark};
use shunt_xdp::{Loaded, PerCpu, Shared};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Device maps that one round puts into the array. Kernels before 6.8 wait for each.
const ROUND_MAPS: usize = 32;
/// Records that `finish()` frees at once, to keep it short.
const GIVEN_BACK: usize = 8192;

/// A replaced record, which is freed when no program reads it any more.
#[derive(Debug)]
pub(crate) enum Retired {
    List(List),
    Block(Block),
    Stream(u32),
    Copy(u32),
    /// Not replaced but new: relayed packets use the copies' path by this interface now.
    Interface(u32),
}

/// A list that is written and not yet in force.
pub(crate) struct Planned {
    stream: u32,
    part: usize,
    list: List,
}

/// Packets for the agent, counted since the maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    pub copied: u64,
    /// Not copied because of their stream's limit.
    pub suppressed: u64,
    /// Lost in a full ring.
    pub lost: u64,
}

/// Space in use, including retired records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub streams: usize,
    pub rewrites: usize,
    /// Words of lists; the first four are unused.
    pub words: u32,
    /// Retired records.
    pub retired: usize,
}

/// The conference tables of the data plane.
pub struct Replication {
    pub(crate) engine: Engine,
    pub(crate) saved: Saved,
    pub(crate) streams: Streams,
    pub(crate) copies: Copies,
    pub(crate) layers: Layers,
    pub(crate) sequences: Sequences,
    pub(crate) lists: Lists,
    pub(crate) outputs: Outputs,
    pub(crate) interfaces: Interfaces,
    agent_counts: PerCpu<agent_counts>,
    array: Arc<Array>,
    retired: VecDeque<(u64, Retired)>,
    /// Epoch of records retired now; a round that begins later frees them.
    epoch: u64,
    /// Records retired in this epoch or before are unread.
    passed: u64,
    /// Destination and source of freed records, whose rows of the next-hop table are still held.
    released: Vec<(IpAddr, IpAddr)>,
    inline_waits: u64,
    // Reused from change to change, for their memory.
    elements: Vec<Element>,
    words: Vec<u64>,
}

impl Replication {
    /// Opens the conference maps without adopting their content. Call `adopt()` next.
    ///
    /// # Errors
    /// The maps cannot be opened.
    pub fn new(loaded: &Loaded) -> Result<Self> {
        let mark: Mark = Shared::<conference_mark>::map(loaded.map("c_layout")?, 1)?.load(0).into();
        let own = |fd: std::os::fd::BorrowedFd<'_>| -> Result<OwnedFd> {
            Ok(fd
                .try_clone_to_owned()
                .map_err(|error| shunt_xdp::Error::new("cannot duplicate a file descriptor", error))?)
        };
        let program = || own(loaded.program("replicate_copy")?);
        let lists = Lists::new(loaded.map("c_lists")?, mark.words)?;
        let lists = lists.ok_or_else(|| Fault::Invalid(format!("There cannot be {} words of lists", mark.words)))?;
        let saved = Saved::new(loaded)?;
        Ok(Self {
            engine: Engine::new(most_nodes(saved.capacity())),
            saved,
            streams: Streams::new(loaded, mark.streams)?,
            copies: Copies::new(loaded, mark.copies)?,
            layers: Layers::new(loaded)?,
            sequences: Sequences::new(loaded, mark.tracks)?,
            lists,
            outputs: Outputs::new(program()?),
            interfaces: Interfaces::new(loaded, program()?)?,
            agent_counts: PerCpu::new(loaded.map("c_agent_counts")?)?,
            array: Arc::new(Array::new(own(loaded.map("c_outputs")?)?, program()?)?),
            retired: VecDeque::new(),
            epoch: 1,
            passed: 0,
            released: Vec::new(),
            inline_waits: 0,
            elements: Vec::new(),
            words: Vec::new(),
        })
    }

    /// Returns the number of rewrites that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.copies.capacity()
    }

    /// Returns the space in use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            streams: self.streams.used(),
            rewrites: self.copies.used(),
            words: self.lists.room().used(),
            retired: self.retired.len(),
        }
    }

    /// Returns the number of changes that waited for a grace period themselves, because a table was full or an interface new.
    #[must_use]
    pub fn inline_waits(&self) -> u64 {
        self.inline_waits
    }

    // Streams

    /// Starts to replicate a stream. `now`: the kernel's tick.
    ///
    /// # Errors
    /// `Exists`, `Invalid`, `NoSpace`.
    pub fn insert_stream(&mut self, key: StreamKey, action: Action, now: u32) -> Result<()> {
        Streams::check(&key, &action, self.sequences.capacity())?;
        if self.streams.has(&key) {
            return Err(Fault::Exists("The stream is replicated already".into()));
        }
        let row = match self.streams.take() {
            Some(row) => row,
            None => {
                self.wait()?;
                let capacity = self.streams.capacity();
                let full = || Fault::NoSpace(format!("There is room for {capacity} streams"));
                self.streams.take().ok_or_else(full)?
            }
        };
        let lists = match self.write_lists(&key, &action, None) {
            Ok(lists) => lists,
            Err(fault) => {
                self.streams.give(row);
                return Err(fault);
            }
        };
        self.sequences.track(action.track);
        let done = self.streams.insert(row, key, action, lists.clone(), now);
        if !matches!(done, Ok(true)) {
            self.sequences.untrack(action.track);
            self.drop_lists(&lists);
            self.streams.give(row);
            done?;
            return Err(Fault::NoSpace("The kernel has no room for one more stream".into()));
        }
        Ok(())
    }

    /// Changes how a stream is replicated; its counters continue.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `NoSpace`.
    pub fn modify_stream(&mut self, key: &StreamKey, action: Action) -> Result<()> {
        Streams::check(key, &action, self.sequences.capacity())?;
        let row = self.streams.row(key)?;
        let Some(before) = self.streams.at(row).cloned() else {
            return Ok(());
        };
        let lists = self.write_lists(key, &action, Some(&before.lists))?;
        self.sequences.track(action.track);
        let kept = lists == before.lists;
        if let Some(former) = self.streams.modify(row, action, lists)
            && !kept
        {
            self.retire_lists(&former);
        }
        self.sequences.untrack(before.action.track);
        Ok(())
    }

    /// Stops replicating a stream.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn delete_stream(&mut self, key: &StreamKey) -> Result<()> {
        let track = self.stream(key).map_or(0, |action| action.track);
        let (row, lists) = self.streams.delete(key)?;
        self.sequences.untrack(track);
        self.retire_lists(&lists);
        self.retire(Retired::Stream(row));
        Ok(())
    }

    /// Returns how a stream is replicated, if it is.
    #[must_use]
    pub fn stream(&self, key: &StreamKey) -> Option<Action> {
        let row = self.streams.row(key).ok()?;
        Some(self.streams.at(row)?.action)
    }

    /// Returns all streams.
    pub fn streams(&self) -> impl Iterator<Item = &StreamKey> {
        self.streams.keys()
    }

    /// Returns the counters of a stream; its lost packets are those without any copy. `now`: the kernel's tick.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn count_stream(&self, key: &StreamKey, now: u32) -> Result<Counted> {
        Ok(self.streams.count(self.streams.row(key)?, now))
    }

    /// Sets a stream's counters to 0, including those of its reception. `now`: the kernel's tick.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn reset_stream(&mut self, key: &StreamKey, now: u32) -> Result<()> {
        self.streams.reset(self.streams.row(key)?, now);
        Ok(())
    }

    /// Returns the reception of a stream since its insertion or the last reset, counted as on a relay entry.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn reception(&self, key: &StreamKey) -> Result<(slot, detail)> {
        Ok(self.streams.reception(self.streams.row(key)?))
    }

    // Copies

    /// Adds the rewrite of copies with this RID of the streams with this number.
    ///
    /// # Errors
    /// `Exists`, `Invalid`, `NoSpace`.
    pub fn insert_copy(&mut self, hops: &mut impl Hops, name: Name, rewrite: Rewrite) -> Result<()> {
        if self.copies.find(name).is_some() {
            return Err(Fault::Exists("There is a rewrite for these copies".into()));
        }
        let index = self.make_copy(hops, name, rewrite)?;
        self.copies.name(index);
        let planned = match self.plan(&self.parts_of_number(name.number)) {
            Ok(planned) => planned,
            Err(fault) => {
                self.copies.unname(name);
                self.drop_copy(index);
                return Err(fault);
            }
        };
        self.sequences.hold_sequence_state(rewrite.sequence_state, rewrite.target);
        self.copies.put_in_force(index, None);
        self.turn_all(planned);
        Ok(())
    }

    /// Changes a rewrite; its counters continue.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `NoSpace`.
    pub fn modify_copy(&mut self, hops: &mut impl Hops, name: Name, rewrite: Rewrite) -> Result<()> {
        let before = self.copies.index(name)?;
        let sequence_state = self.copies.at(before).map_or(0, |copy| copy.rewrite.sequence_state);
        let index = self.make_copy(hops, name, rewrite)?;
        self.copies.name(index);
        let planned = match self.plan(&self.parts_of_number(name.number)) {
            Ok(planned) => planned,
            Err(fault) => {
                self.copies.rename(before);
                self.drop_copy(index);
                return Err(fault);
            }
        };
        self.sequences.hold_sequence_state(rewrite.sequence_state, rewrite.target);
        self.copies.put_in_force(index, Some(before));
        self.turn_all(planned);
        self.sequences.release_sequence_state(sequence_state);
        self.retire(Retired::Copy(before));
        Ok(())
    }

    /// Removes a rewrite: these copies are dropped from now on.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`.
    pub fn delete_copy(&mut self, name: Name) -> Result<()> {
        let index = self.copies.index(name)?;
        self.copies.unname(name);
        let planned = match self.plan(&self.parts_of_number(name.number)) {
            Ok(planned) => planned,
            Err(fault) => {
                self.copies.rename(index);
                return Err(fault);
            }
        };
        self.copies.take_from_force(index);
        self.turn_all(planned);
        let sequence_state = self.copies.at(index).map_or(0, |copy| copy.rewrite.sequence_state);
        self.sequences.release_sequence_state(sequence_state);
        self.retire(Retired::Copy(index));
        Ok(())
    }

    /// Returns a rewrite; `None` if these copies are dropped.
    #[must_use]
    pub fn copy(&self, name: Name) -> Option<Rewrite> {
        Some(self.copies.at(self.copies.find(name)?)?.rewrite)
    }

    /// Returns number and RID of all rewrites.
    pub fn copies(&self) -> impl Iterator<Item = Name> {
        self.copies.names()
    }

    #[must_use]
    pub fn copy_count(&self) -> usize {
        self.copies.len()
    }

    /// Returns the counters of a rewrite; its lost packets are copies without a next hop or too big for it.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn count_copy(&self, name: Name) -> Result<Counted> {
        Ok(self.copies.count(self.copies.index(name)?))
    }

    /// Sets the counters of a rewrite to 0.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn reset_copy(&mut self, name: Name) -> Result<()> {
        self.copies.reset(self.copies.index(name)?);
        Ok(())
    }

    pub(crate) fn make_copy(&mut self, hops: &mut impl Hops, name: Name, rewrite: Rewrite) -> Result<u32> {
        Copies::check(name, &rewrite, self.sequences.capacity())?;
        self.release_hops(hops);
        if !self.copies.has_room() {
            self.wait()?;
            self.release_hops(hops);
        }
        let capacity = self.copies.capacity();
        let full = || Fault::NoSpace(format!("There is room for {capacity} rewrites"));
        if !self.copies.has_room() {
            return Err(full());
        }
        let (dst, src) = (rewrite.dst.addr, rewrite.src.addr);
        let row = hops.acquire(dst, src).map_err(|error| Fault::NoSpace(error.to_string()))?;
        self.copies.make(name, rewrite, row, hops.output(row)).ok_or_else(full)
    }

    pub(crate) fn drop_copy(&mut self, index: u32) {
        self.released.extend(self.copies.give(index));
    }

    /// Releases the rows of the next-hop table that freed records held.
    pub(crate) fn release_hops(&mut self, hops: &mut impl Hops) {
        for (dst, src) in self.released.drain(..) {
            hops.release(dst, src);
        }
    }

    // Layers

    /// Returns the table of layers.
    #[must_use]
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Returns the table of layers. No change of it affects another table.
    pub fn layers_mut(&mut self) -> &mut Layers {
        &mut self.layers
    }

    // The replication engine

    /// Returns the engine's tables.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// INSERT into `$pre.node`.
    ///
    /// # Errors
    /// As the engine's.
    pub fn insert_node(&mut self, number: u32, rid: u16, ports: &[u32], lags: &[u32]) -> Result<()> {
        let undo = self.engine.add_node(number, rid, ports, lags)?;
        self.change(undo, &[], |table| table.saved.put_node(number, table.engine.node(number)?))
    }

    /// MODIFY of `$pre.node`.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn modify_node(&mut self, number: u32, rid: Option<u16>, ports: &[u32], lags: &[u32]) -> Result<()> {
        let undo = self.engine.modify_node(number, rid, ports, lags)?;
        let parts = self.parts_of_node(number);
        self.change(undo, &parts, |table| table.saved.put_node(number, table.engine.node(number)?))
    }

    /// DELETE from `$pre.node`.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn delete_node(&mut self, number: u32) -> Result<()> {
        let parts = self.parts_of_node(number);
        let mgid = self.engine.node(number)?.mgid;
        let undo = self.engine.delete_node(number)?;
        self.change(undo, &parts, |table| table.saved.delete_node(number))?;
        // An adopting process leaves out a missing node.
        if let Some(mgid) = mgid
            && let Err(fault) = self.save_tree(mgid)
        {
            tracing::warn!("tree {mgid} still names node {number}, which is no more: {fault}");
        }
        Ok(())
    }

    /// INSERT into `$pre.mgid`.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn insert_tree(&mut self, mgid: u16, members: &[Member]) -> Result<()> {
        let undo = self.engine.add_tree(mgid, members)?;
        self.change(undo, &self.parts_of_tree(mgid), |table| table.save_tree(mgid))
    }

    /// MODIFY of `$pre.mgid`: every packet gets either the old copies or the new ones.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn modify_tree(&mut self, mgid: u16, members: &[Member]) -> Result<()> {
        let undo = self.engine.modify_tree(mgid, members)?;
        self.change(undo, &self.parts_of_tree(mgid), |table| table.save_tree(mgid))
    }

    /// DELETE from `$pre.mgid`.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn delete_tree(&mut self, mgid: u16) -> Result<()> {
        let undo = self.engine.delete_tree(mgid)?;
        self.change(undo, &self.parts_of_tree(mgid), |table| {
            if let Some(block) = table.saved.delete_tree(mgid)? {
                table.lists.give(block.at, block.words);
            }
            Ok(())
        })
    }

    /// Sets an entry of `$pre.prune`.
    ///
    /// # Errors
    /// As the engine's, and `NoSpace`.
    pub fn set_prune(&mut self, l2_xid: u16, ports: &[u32]) -> Result<()> {
        let undo = self.engine.set_prune(l2_xid, ports)?;
        let parts = self.parts_of(self.streams.of_prune(l2_xid));
        self.change(undo, &parts, |table| table.saved.put_prune(l2_xid, table.engine.prune(l2_xid)))
    }

    /// Puts a change of the engine's tables into force: writes the required lists, saves the change, and switches to the lists. Reverts the
    /// change if one of the first two steps fails.
    fn change(&mut self, undo: Undo, parts: &[(u32, usize)], save: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let planned = match self.plan(parts) {
            Ok(planned) => planned,
            Err(fault) => {
                self.engine.undo(undo);
                return Err(fault);
            }
        };
        if let Err(fault) = save(self) {
            self.drop_planned(planned);
            self.engine.undo(undo);
            return Err(fault);
        }
        self.turn_all(planned);
        Ok(())
    }

    /// Writes a tree's members for an adopting process.
    pub(crate) fn save_tree(&mut self, mgid: u16) -> Result<()> {
        let words = block_of(&self.engine.members(mgid)?);
        let length = words.len() as u32;
        let at = self.take_words(length)?;
        self.lists.write(at, &words);
        let done = self.saved.put_tree(mgid, Block { at, words: length });
        let gone = match &done {
            Ok(former) => *former,
            Err(_) => Some(Block { at, words: length }),
        };
        if let Some(block) = gone {
            self.lists.give(block.at, block.words);
        }
        done.map(drop)
    }

    fn parts_of(&self, rows: impl Iterator<Item = u32>) -> Vec<(u32, usize)> {
        let parts = |row: u32| self.streams.at(row).map_or(0, |stream| stream.lists.parts.len());
        rows.flat_map(|row| (0..parts(row)).map(move |part| (row, part))).collect()
    }

    pub(crate) fn parts_of_number(&self, number: u32) -> Vec<(u32, usize)> {
        self.parts_of(self.streams.of_number(number))
    }

    fn parts_of_tree(&self, mgid: u16) -> Vec<(u32, usize)> {
        let part = |row: u32| Some((row, usize::from(mgid.checked_sub(self.streams.at(row)?.action.mgid)?)));
        self.streams.of_tree(mgid).filter_map(part).collect()
    }

    fn parts_of_node(&self, number: u32) -> Vec<(u32, usize)> {
        let mgid = self.engine.node(number).ok().and_then(|node| node.mgid);
        mgid.map(|mgid| self.parts_of_tree(mgid)).unwrap_or_default()
    }

    // Lists

    /// Writes new lists for these streams' trees where they differ, without switching to them. Writes none if one does not fit.
    pub(crate) fn plan(&mut self, parts: &[(u32, usize)]) -> Result<Vec<Planned>> {
        let mut planned = Vec::with_capacity(parts.len());
        for (row, part) in parts {
            let Some(stream) = self.streams.at(*row) else { continue };
            let Some(before) = stream.lists.parts.get(*part).copied() else {
                continue;
            };
            if stream.lists.parts.len() > 1 && stream.lists.top == 0 {
                continue; // its lists could not be adopted: they are made with the stream's next change
            }
            let (action, sums) = (stream.action, stream.sums());
            match self.write_list(action.mgid.checked_add(*part as u16), &action, sums, &before) {
                Ok(list) if list == before => {}
                Ok(list) => planned.push(Planned {
                    stream: *row,
                    part: *part,
                    list,
                }),
                Err(fault) => {
                    self.drop_planned(planned);
                    return Err(fault);
                }
            }
        }
        Ok(planned)
    }

    fn drop_planned(&mut self, planned: Vec<Planned>) {
        for one in planned {
            self.drop_list(&one.list);
        }
    }

    pub(crate) fn turn_all(&mut self, planned: Vec<Planned>) {
        for Planned { stream, part, list } in planned {
            let Some(found) = self.streams.at_mut(stream) else { continue };
            let top = found.lists.top;
            let former = if top == 0 {
                self.streams.turn(stream, list)
            } else {
                // The word that locates the list of one layer's packets.
                self.lists.turn(top + part as u32, list.at);
                found.lists.parts.get_mut(part).map(|place| std::mem::replace(place, list))
            };
            if let Some(former) = former
                && former.at != 0
            {
                self.retire(Retired::List(former));
            }
        }
    }

    /// Switches a stream's packets to the copies that the tables require. If that fails, they keep their present copies.
    pub(crate) fn renew(&mut self, row: u32) {
        let parts = self.parts_of(std::iter::once(row));
        match self.plan(&parts) {
            Ok(planned) => self.turn_all(planned),
            Err(fault) => {
                if let Some(StreamKey { flow, ssrc }) = self.streams.at(row).map(|stream| stream.key) {
                    tracing::error!("the copies of {flow} with SSRC {ssrc:08x} stay as they were: {fault}");
                }
            }
        }
    }

    /// Writes all lists of a stream. `before`: its present lists; a single list with equal content is kept.
    fn write_lists(&mut self, key: &StreamKey, action: &Action, before: Option<&StreamLists>) -> Result<StreamLists> {
        let sums = sums_of(key);
        let single = action.mgids().len() == 1;
        let kept = before
            .filter(|lists| single && lists.top == 0)
            .and_then(|lists| lists.parts.first());
        let kept = kept.copied().unwrap_or_default();
        let mut lists = StreamLists::default();
        let mut write = || -> Result<()> {
            for mgid in action.mgids() {
                lists.parts.push(self.write_list(u16::try_from(mgid).ok(), action, sums, &kept)?);
            }
            if !single {
                let words: Vec<u64> = lists.parts.iter().map(|list| list.at.into()).collect();
                lists.top = self.take_words(words.len() as u32)?;
                self.lists.write(lists.top, &words);
            }
            Ok(())
        };
        if let Err(fault) = write() {
            self.drop_lists(&lists);
            return Err(fault);
        }
        Ok(lists)
    }

    /// Writes the list of a stream's copies in one tree. `before`: kept if its content is equal.
    fn write_list(&mut self, mgid: Option<u16>, action: &Action, sums: Option<Sums>, before: &List) -> Result<List> {
        self.elements.clear();
        if let (Some(mgid), Some(records)) = (mgid, self.copies.of_number(action.number)) {
            let copies = &self.copies;
            let element = |rid: u16| {
                let index = *records.get(&rid)?;
                let copy = copies.at(index).filter(|copy| copy.ifindex != 0)?;
                Some(Element {
                    ifindex: copy.ifindex,
                    copy: index,
                    after: copy.sums,
                })
            };
            let rids = self.engine.copies(mgid, action.l1_xid, action.rid, action.l2_xid);
            self.elements.extend(rids.filter_map(element));
        }
        if self.elements.is_empty() {
            return Ok(List::default());
        }
        let composition = compose(&mut self.elements, sums, &mut self.words)?;
        if before.at != 0 && self.lists.holds(before, &self.words) {
            return Ok(*before);
        }
        let words = self.words.len() as u32;
        let at = self.take_words(words)?;
        match self.acquire_output(&composition) {
            Ok(outputs) => {
                self.lists.write_list(at, &self.words, &composition, outputs);
                Ok(List { at, words, outputs })
            }
            Err(fault) => {
                self.lists.give(at, words);
                Err(fault)
            }
        }
    }

    fn take_words(&mut self, words: u32) -> Result<u32> {
        if let Some(at) = self.lists.take(words) {
            return Ok(at);
        }
        self.wait()?;
        let (size, used) = (self.lists.room().size(), self.lists.room().used());
        let full = || Fault::NoSpace(format!("There is room for {size} words of lists, {used} are taken"));
        self.lists.take(words).ok_or_else(full)
    }

    /// Returns the row of the device map with these interfaces, for one more user.
    fn acquire_output(&mut self, composition: &Composition) -> Result<u16> {
        for (ifindex, _) in composition.devices() {
            if !self.interfaces.has(*ifindex)? {
                self.add_interface(*ifindex)?;
            }
        }
        let ready = |table: &Self| composition.devices().iter().all(|(ifindex, _)| table.interfaces.is_ready(*ifindex));
        if !ready(self) {
            self.wait()?;
        }
        if let Some(row) = self.outputs.acquire(composition)? {
            return Ok(row);
        }
        self.wait()?;
        let full = || {
            let most = OUTPUTS - 1;
            Fault::NoSpace(format!(
                "There is room for {most} different sets of interfaces and numbers of copies"
            ))
        };
        self.outputs.acquire(composition)?.ok_or_else(full)
    }

    /// Announces that copies may soon leave by these interfaces. New ones are ready after a round, so that no change must wait for them.
    pub fn prepare(&mut self, interfaces: impl IntoIterator<Item = u32>) {
        for ifindex in interfaces {
            let added = self
                .interfaces
                .has(ifindex)
                .map_err(Fault::from)
                .and_then(|there| if there { Ok(()) } else { self.add_interface(ifindex) });
            if let Err(fault) = added {
                tracing::debug!("copies cannot leave by interface {ifindex}: {fault}");
            }
        }
    }

    fn add_interface(&mut self, ifindex: u32) -> Result<()> {
        self.interfaces
            .add(ifindex)
            .map_err(|error| Fault::NoSpace(format!("no device map: {error}")))?;
        self.outputs.forget(ifindex);
        self.retire(Retired::Interface(ifindex));
        Ok(())
    }

    /// Handles interfaces that were removed and made again with their numbers, which device maps lack.
    fn readd_interfaces(&mut self) {
        for ifindex in self.interfaces.removed().unwrap_or_default() {
            if self.add_interface(ifindex).is_ok() {
                tracing::info!("interface {ifindex} was made anew: copies leave by it again");
            }
        }
    }

    // Freeing

    pub(crate) fn retire(&mut self, what: Retired) {
        self.retired.push_back((self.epoch, what));
    }

    fn retire_lists(&mut self, lists: &StreamLists) {
        for list in &lists.parts {
            if list.at != 0 {
                self.retire(Retired::List(*list));
            }
        }
        if lists.top != 0 {
            let words = lists.parts.len() as u32;
            self.retire(Retired::Block(Block { at: lists.top, words }));
        }
    }

    fn drop_lists(&mut self, lists: &StreamLists) {
        for list in &lists.parts {
            self.drop_list(list);
        }
        if lists.top != 0 {
            self.lists.give(lists.top, lists.parts.len() as u32);
        }
    }

    fn drop_list(&mut self, list: &List) {
        if list.at != 0 {
            self.lists.give(list.at, list.words);
            self.outputs.release(list.outputs);
        }
    }

    /// Returns the next round, if one is needed. Short.
    pub fn begin(&mut self) -> Option<Round> {
        self.give_back(GIVEN_BACK);
        self.readd_interfaces();
        let tasks = self.outputs.tasks(ROUND_MAPS);
        (!tasks.is_empty() || !self.retired.is_empty()).then(|| self.round(tasks))
    }

    fn round(&mut self, tasks: Vec<crate::outputs::Task>) -> Round {
        let until = self.epoch;
        self.epoch += 1;
        Round {
            array: Arc::clone(&self.array),
            tasks,
            until,
        }
    }

    /// Frees records that a round has waited for. Short; later calls of `begin()` free the rest.
    pub fn finish(&mut self, hops: &mut impl Hops, passed: Passed) {
        self.passed(passed);
        self.give_back(GIVEN_BACK);
        self.release_hops(hops);
    }

    fn passed(&mut self, passed: Passed) {
        for (row, map) in passed.maps {
            self.outputs.put(row, map);
        }
        self.passed = self.passed.max(passed.until.unwrap_or(0));
    }

    fn give_back(&mut self, limit: usize) {
        for _ in 0..limit {
            if self.retired.front().is_none_or(|(epoch, _)| *epoch > self.passed) {
                return;
            }
            let Some((_, what)) = self.retired.pop_front() else { return };
            match what {
                Retired::List(list) => self.drop_list(&list),
                Retired::Block(block) => self.lists.give(block.at, block.words),
                Retired::Stream(row) => self.streams.give(row),
                Retired::Copy(index) => self.drop_copy(index),
                Retired::Interface(ifindex) => self.interfaces.made_ready(ifindex),
            }
        }
    }

    /// Waits for a grace period now, and frees all retired records.
    ///
    /// # Errors
    /// The wait fails.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.inline_waits += 1;
        let tasks = self.outputs.tasks(ROUND_MAPS);
        let passed = self.round(tasks).run();
        self.passed(passed);
        self.give_back(usize::MAX);
        Ok(())
    }

    // Other

    /// Returns destination and source of the copies' packets, and how many rewrites, including retired ones, hold a row of the next-hop
    /// table for them.
    #[must_use]
    pub fn destinations(&self) -> HashMap<(IpAddr, IpAddr), u32> {
        let mut held = HashMap::new();
        for pair in self.copies.destinations().chain(self.released.iter().copied()) {
            *held.entry(pair).or_default() += 1;
        }
        held
    }

    /// Returns the rows of the next-hop table that the copies in the maps use, also before adoption.
    #[must_use]
    pub fn rows(&self) -> BTreeSet<u16> {
        self.copies.left_rows().into_iter().collect()
    }

    /// Returns the stream and the frame (its first 1,536 bytes) of a record of the ring `c_agent`; `None` if the stream is gone.
    #[must_use]
    pub fn agent_packet<'a>(&self, record: &'a [u8]) -> Option<(&StreamKey, &'a [u8])> {
        let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let (row, length) = (word(offset_of!(agent_copy, stream))?, word(offset_of!(agent_copy, length))?);
        let frame = record.get(offset_of!(agent_copy, frame)..)?;
        let frame = &frame[..frame.len().min(length as usize)];
        Some((&self.streams.at(row)?.key, frame))
    }

    /// Returns the packets for the agent since the maps were made.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn agent_counts(&self) -> Result<AgentCounts> {
        let mut sums = AgentCounts::default();
        for one in self.agent_counts.get(0)? {
            sums.copied += one.copied;
            sums.suppressed += one.suppressed;
            sums.lost += one.lost;
        }
        Ok(sums)
    }
}
