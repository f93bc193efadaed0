//! Computes the steps from the tables' present contents to the wanted contents, in an order that neither loses nor duplicates packets.
//!
//! Used after a restart of the data plane or the agent. Everything is laid out anew beside the rows found, under unused numbers
//! ([`crate::migration::Allocator::reserve`]). Then streams move one by one, and unwanted rows are removed last.

use crate::tables::{Row, Value};
use std::collections::BTreeMap;

/// Rank of a row in the order of writes: a row comes after the rows that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Node,
    Layer,
    Tree,
    Copy,
    Prune,
    /// Rows from this rank on move packets.
    Stream,
    Relay,
}

/// A key of a table.
pub trait Ranked: Ord + Clone {
    fn rank(&self) -> Rank;
}

impl Ranked for Row {
    fn rank(&self) -> Rank {
        match self {
            Self::Node(_) => Rank::Node,
            Self::Tree(_) => Rank::Tree,
            Self::Copy(..) => Rank::Copy,
            Self::Prune(_) => Rank::Prune,
            Self::Stream(_) => Rank::Stream,
            Self::Relay(_) => Rank::Relay,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<K, V> {
    Add(K, V),
    Modify(K, V),
    /// Delete a row; an exclusion set is emptied instead.
    Delete(K),
    /// Wait until packets that arrived before have left.
    Drain,
}

impl<K, V> Step<K, V> {
    /// Returns the key of the step's row.
    pub fn key(&self) -> Option<&K> {
        match self {
            Self::Add(key, _) | Self::Modify(key, _) | Self::Delete(key) => Some(key),
            Self::Drain => None,
        }
    }
}

/// Returns the steps from the written rows to the wanted rows.
#[must_use]
pub fn diff<K: Ranked, V: Clone + PartialEq>(wanted: &BTreeMap<K, V>, written: &BTreeMap<K, V>) -> Vec<Step<K, V>> {
    let mut puts: Vec<(Rank, Step<K, V>)> = Vec::new();
    for (key, value) in wanted {
        match written.get(key) {
            Some(there) if there == value => {}
            Some(_) => puts.push((key.rank(), Step::Modify(key.clone(), value.clone()))),
            None => puts.push((key.rank(), Step::Add(key.clone(), value.clone()))),
        }
    }
    puts.sort_by_key(|(rank, _)| *rank);
    let gone = written.keys().filter(|key| !wanted.contains_key(key));
    let mut deletes: Vec<(Rank, K)> = gone.map(|key| (key.rank(), key.clone())).collect();
    // A relay entry matches before a stream's row. It is deleted first, so that the stream's row takes over its packets.
    deletes.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let moving = deletes.iter().take_while(|(rank, _)| *rank >= Rank::Stream).count();
    let freed = deletes.split_off(moving);
    let mut steps: Vec<Step<K, V>> = puts.into_iter().map(|(_, step)| step).collect();
    steps.extend(deletes.into_iter().map(|(_, key)| Step::Delete(key)));
    if !freed.is_empty() {
        steps.push(Step::Drain);
    }
    steps.extend(freed.into_iter().map(|(_, key)| Step::Delete(key)));
    steps
}

/// Rows of a plan, as input of [`diff`].
pub type Rows = BTreeMap<Row, Value>;
