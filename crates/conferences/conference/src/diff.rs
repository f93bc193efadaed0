//! From what the tables contain to what they should contain, in an order in which no packet is lost or doubled.
//!
//! For a data plane or an agent that comes back: everything is laid out anew beside what was found, under numbers that nothing found has
//! ([`crate::migration::Allocator::reserve`]), then streams move one by one, and what was found and is not wanted goes last.

use crate::tables::{Row, Value};
use std::collections::BTreeMap;

/// Where a row stands in the order of writes: what others name comes before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Node,
    Layer,
    Tree,
    Copy,
    Prune,
    /// From here on a row moves packets.
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
    /// Of an exclusion set: empty it.
    Delete(K),
    /// Wait until packets that came in before have left.
    Drain,
}

impl<K, V> Step<K, V> {
    /// The row that it is about.
    pub fn key(&self) -> Option<&K> {
        match self {
            Self::Add(key, _) | Self::Modify(key, _) | Self::Delete(key) => Some(key),
            Self::Drain => None,
        }
    }
}

/// The steps from the rows that are written to the wanted ones.
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
    // A relay entry has packets before a stream's row has: it goes first, so that the stream's row takes them over.
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

/// Rows of a plan, as [`diff`] takes them.
pub type Rows = BTreeMap<Row, Value>;
