//! Clears all tables in steps, so that large tables do not delay others.

use crate::fault::Result;
use crate::table::Replication;

impl Replication {
    /// Deletes up to about `limit` entries of all tables. Returns whether all are deleted. The tables stay consistent between the steps.
    ///
    /// # Errors
    /// The kernel rejects a lookup or deletion.
    pub fn clear(&mut self, limit: usize) -> Result<bool> {
        let mut left = limit.max(1);
        let streams: Vec<_> = self.streams.keys().take(left).copied().collect();
        for key in &streams {
            self.delete_stream(key)?;
        }
        left -= streams.len();
        // Without streams, a change of the other tables affects no list.
        let copies: Vec<_> = self.copies.names().take(left).collect();
        for name in &copies {
            self.delete_copy(*name)?;
        }
        left -= copies.len();
        let trees: Vec<_> = self.engine.trees().take(left).collect();
        for mgid in &trees {
            self.delete_tree(*mgid)?;
        }
        left -= trees.len();
        let nodes: Vec<_> = self.engine.nodes().take(left).map(|(number, _)| number).collect();
        for number in &nodes {
            self.delete_node(*number)?;
        }
        left -= nodes.len();
        let layers: Vec<_> = self.layers.keys().take(left).collect();
        for (layers, template) in &layers {
            self.layers.delete(*layers, *template)?;
        }
        left -= layers.len();
        let prunes: Vec<_> = self.engine.prunes().take(left).collect();
        for l2_xid in &prunes {
            self.set_prune(*l2_xid, &[])?;
        }
        Ok(left > prunes.len())
    }
}
