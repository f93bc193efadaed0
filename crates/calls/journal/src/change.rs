//! Changes for the writer, and the queue of waiting ones.

use shunt_calls::{Row, RowKey};
use std::collections::HashMap;

/// Most waiting rows. After a longer failure of the disk all lines are written anew.
const MOST_WAITING: usize = 200_000;

/// The change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put {
        /// The ports that the relay assigned to the two parties.
        ports: [Option<u16>; 2],
        json: Vec<u8>,
    },
    Remove,
    /// The row cannot be used and is stored separately.
    SetAside(String),
}

impl Change {
    pub(crate) fn put(row: &Row) -> serde_json::Result<Self> {
        Ok(Self::Put {
            ports: [&row.caller, &row.callee].map(|leg| leg.relay.map(|relay| relay.port)),
            json: serde_json::to_vec(row)?,
        })
    }
}

/// The newest change of each row.
pub(crate) type Changes = HashMap<RowKey, Change>;

/// The newest version of each document; `None`: it is deleted.
pub(crate) type Documents = HashMap<String, Option<Vec<u8>>>;

/// Changes that wait for the writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) changes: Changes,
    /// Other documents than calls. Only a shared journal has any.
    pub(crate) documents: Documents,
    /// This agent is not active: nothing is opened yet.
    pub(crate) is_held: bool,
    /// Changes submitted since the start.
    pub(crate) handed: u64,
    /// Too many waited and were dropped: the store must be cleared and written anew.
    pub(crate) lost: bool,
    /// A reader has found damage.
    pub(crate) damage: Option<String>,
    pub(crate) closed: bool,
}

impl Queue {
    pub(crate) fn give(&mut self, key: RowKey, change: Change) {
        self.handed += 1;
        if self.changes.len() >= MOST_WAITING && !self.changes.contains_key(&key) {
            self.changes.clear();
            self.lost = true;
        }
        if !self.lost {
            self.changes.insert(key, change);
        }
    }

    /// Returns unwritten changes to the queue, unless newer ones exist.
    pub(crate) fn give_back(&mut self, changes: Changes) {
        if !self.lost {
            for (key, change) in changes {
                self.changes.entry(key).or_insert(change);
            }
        }
    }

    pub(crate) fn give_document(&mut self, name: String, body: Option<Vec<u8>>) {
        self.handed += 1;
        self.documents.insert(name, body);
    }

    pub(crate) fn give_back_documents(&mut self, documents: Documents) {
        for (name, body) in documents {
            self.documents.entry(name).or_insert(body);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.changes.is_empty() && self.documents.is_empty() && !self.closed && !self.lost && self.damage.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_calls::Text;

    fn key(number: usize) -> RowKey {
        RowKey {
            call_id: Text(number.to_string().into_bytes()),
            tag: Text::default(),
            media: None,
        }
    }

    #[test]
    fn what_waits_is_bounded_and_the_loss_is_known() {
        let mut queue = Queue::default();
        for number in 0..MOST_WAITING {
            queue.give(key(number), Change::Remove);
        }
        assert!(!queue.lost && queue.changes.len() == MOST_WAITING);
        queue.give(key(0), Change::SetAside("a newer change of the same row".into()));
        assert!(!queue.lost);
        queue.give(key(MOST_WAITING), Change::Remove);
        assert!(queue.lost && queue.changes.is_empty());
        queue.give_back(Changes::from([(key(1), Change::Remove)]));
        assert!(queue.changes.is_empty() && !queue.is_idle());
    }

    #[test]
    fn a_newer_change_is_kept_when_older_ones_are_put_back() {
        let mut queue = Queue::default();
        queue.give(key(1), Change::Remove);
        queue.give_back(Changes::from([(key(1), Change::SetAside(String::new())), (key(2), Change::Remove)]));
        assert_eq!(queue.changes.get(&key(1)), Some(&Change::Remove));
        assert_eq!(queue.changes.len(), 2);
    }
}
