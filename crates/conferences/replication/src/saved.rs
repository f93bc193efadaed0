//! The engine's tables in the kernel's maps, which only an adopting process reads.
//!
//! The members of a tree are in one block of the lists' words, which the tree's row names. Every change of a table takes effect with one
//! call of the kernel, so a kill leaves it made or not made.

use crate::engine::{Engine, Member, Node, Ports};
use crate::fault::{Fault, Result};
use crate::lists::Lists;
use shunt_abi::replicate::{node, prune};
use shunt_xdp::{Hash, Loaded, Put};
use std::collections::HashMap;

const NO_PORT: u32 = u32::MAX;
/// Bit of a member's word: its L1 XID, in the bits above, is valid.
const XID_VALID: u64 = 1 << 32;
const XID_SHIFT: u32 = 48;

/// A block of words.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub at: u32,
    pub words: u32,
}

pub struct Saved {
    nodes: Hash<u32, node>,
    trees: Hash<u32, u32>,
    prunes: Hash<u32, prune>,
    blocks: HashMap<u16, Block>,
}

/// A tree's block: the number of members, and a word for each.
pub fn block_of(members: &[Member]) -> Vec<u64> {
    let word = |member: &Member| {
        let xid = member.xid.map_or(0, |xid| u64::from(xid) << XID_SHIFT | XID_VALID);
        u64::from(member.node) | xid
    };
    std::iter::once(members.len() as u64).chain(members.iter().map(word)).collect()
}

fn member_of(word: u64) -> Member {
    Member {
        node: word as u32,
        xid: (word & XID_VALID != 0).then_some((word >> XID_SHIFT) as u16),
    }
}

fn fit(put: Put) -> Result<()> {
    match put {
        Put::Done => Ok(()),
        Put::Full => Err(Fault::NoSpace("The kernel has no room for the replication engine's tables".into())),
    }
}

impl Saved {
    pub fn new(loaded: &Loaded) -> shunt_xdp::Result<Self> {
        Ok(Self {
            nodes: Hash::new(loaded.map("c_nodes")?)?,
            trees: Hash::new(loaded.map("c_trees")?)?,
            prunes: Hash::new(loaded.map("c_prunes")?)?,
            blocks: HashMap::new(),
        })
    }

    pub fn capacity(&self) -> usize {
        self.nodes.capacity() as usize
    }

    pub fn put_node(&self, number: u32, found: &Node) -> Result<()> {
        let value = node {
            port: found.port.map_or(NO_PORT, u32::from),
            rid: found.rid,
            ..Default::default()
        };
        fit(self.nodes.put(&number, &value)?)
    }

    pub fn delete_node(&self, number: u32) -> Result<()> {
        self.nodes.delete(&number)?;
        Ok(())
    }

    /// Sets a tree's block. Returns the former one, which is unread.
    pub fn put_tree(&mut self, mgid: u16, block: Block) -> Result<Option<Block>> {
        fit(self.trees.put(&mgid.into(), &block.at)?)?;
        Ok(self.blocks.insert(mgid, block))
    }

    pub fn delete_tree(&mut self, mgid: u16) -> Result<Option<Block>> {
        self.trees.delete(&mgid.into())?;
        Ok(self.blocks.remove(&mgid))
    }

    pub fn put_prune(&self, l2_xid: u16, ports: Ports) -> Result<()> {
        if ports == Ports::default() {
            self.prunes.delete(&l2_xid.into())?;
            return Ok(());
        }
        fit(self.prunes.put(&l2_xid.into(), &prune { ports })?)
    }

    /// Takes over the tables of a former process. Returns trees that name missing nodes and must be written again.
    pub fn adopt(&mut self, engine: &mut Engine, lists: &mut Lists) -> Result<Vec<u16>> {
        for (number, value) in self.nodes.elements()? {
            engine.adopt_node(number, value.rid, u16::try_from(value.port).ok());
        }
        let mut outdated = Vec::new();
        for (key, at) in self.trees.elements()? {
            let mgid = key as u16;
            let Some(members) = self.adopt_block(mgid, at, lists) else {
                tracing::error!("the members of tree {mgid} overlap something else: it is forgotten");
                self.trees.delete(&key)?;
                continue;
            };
            if !engine.adopt_tree(mgid, &members) {
                outdated.push(mgid);
            }
        }
        for (key, value) in self.prunes.elements()? {
            engine.adopt_prune(key as u16, value.ports);
        }
        Ok(outdated)
    }

    fn adopt_block(&mut self, mgid: u16, at: u32, lists: &mut Lists) -> Option<Vec<Member>> {
        let count = u32::try_from(lists.read(at)?).ok()?;
        let words = count.checked_add(1)?;
        if at == 0 || !lists.claim(at, words) {
            return None;
        }
        self.blocks.insert(mgid, Block { at, words });
        Some((1..words).filter_map(|n| Some(member_of(lists.read(at + n)?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_were_written() {
        let members = [None, Some(0), Some(7), Some(u16::MAX)].map(|xid| Member { node: u32::MAX - 3, xid });
        let block = block_of(&members);
        assert_eq!(block[0], 4);
        let read: Vec<Member> = block[1..].iter().map(|word| member_of(*word)).collect();
        assert_eq!(read, members);
    }
}
