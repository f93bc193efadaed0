//! Adopts the maps of a former process, whenever it was killed.

use crate::fault::Result;
use crate::hops::Hops;
use crate::lists::{List, Lists};
use crate::outputs::Outputs;
use crate::streams::{Action, StreamLists};
use crate::table::{Replication, Retired};
use std::collections::BTreeSet;

impl Replication {
    /// Reads the tables from the maps, and switches every stream to the lists that they require. `taken`: rows of the next-hop table that
    /// others may use and that are not yet taken over. Packets are copied meanwhile. Waits for a grace period.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn adopt(&mut self, hops: &mut impl Hops, taken: &BTreeSet<u16>) -> Result<()> {
        let outdated = self.saved.adopt(&mut self.engine, &mut self.lists)?;
        self.layers.adopt()?;
        for index in self.copies.adopt(hops, taken) {
            self.retire(Retired::Copy(index));
        }
        for name in self.copies.names().collect::<Vec<_>>() {
            let sequence_state = self.copy(name).map_or(0, |rewrite| rewrite.sequence_state);
            self.sequences.adopt_sequence_state(sequence_state);
        }
        for ifindex in self.copies.interfaces() {
            self.interfaces.adopt(ifindex)?;
        }
        let (lists, outputs, sequences) = (&mut self.lists, &mut self.outputs, &mut self.sequences);
        self.streams.adopt(|at, action| {
            sequences.adopt_track(action.track);
            adopt_lists(lists, outputs, at, action)
        })?;
        self.outputs.finish_adoption();
        self.prepare(self.copies.interfaces());
        self.wait()?;
        for mgid in outdated {
            self.save_tree(mgid)?;
        }
        for row in self.streams.rows().collect::<Vec<_>>() {
            self.renew(row);
        }
        self.release_hops(hops);
        Ok(())
    }
}

/// Takes over the lists of a stream whose `turn` points to `at`; `None` if their words belong to others.
fn adopt_lists(lists: &mut Lists, outputs: &mut Outputs, at: u32, action: &Action) -> Option<StreamLists> {
    let trees = action.mgids().len() as u32;
    if trees == 1 {
        let list = adopt_list(lists, outputs, at)?;
        return Some(StreamLists { top: 0, parts: vec![list] });
    }
    if at == 0 || !lists.claim(at, trees) {
        return None;
    }
    let mut found = StreamLists {
        top: at,
        parts: Vec::new(),
    };
    for part in 0..trees {
        let word = lists.read(at + part).and_then(|word| u32::try_from(word).ok());
        let Some(list) = word.and_then(|at| adopt_list(lists, outputs, at)) else {
            for list in found.parts.iter().filter(|list| list.at != 0) {
                lists.give(list.at, list.words);
                outputs.release(list.outputs);
            }
            lists.give(at, trees);
            return None;
        };
        found.parts.push(list);
    }
    Some(found)
}

fn adopt_list(lists: &mut Lists, outputs: &mut Outputs, at: u32) -> Option<List> {
    if at == 0 {
        return Some(List::default());
    }
    let (list, composition) = lists.adopt(at)?;
    if outputs.adopt(list.outputs, &composition) {
        return Some(list);
    }
    lists.give(list.at, list.words);
    None
}
