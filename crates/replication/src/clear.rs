//! Emptying all tables, in steps that do not hold up others even where the tables are large.

use crate::fault::Result;
use crate::table::Replication;

impl Replication {
    /// Delete up to about `limit` entries of all tables; whether that was all. Between the steps the tables are as they stand: with
    /// fewer entries.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn clear(&mut self, limit: usize) -> Result<bool> {
        let mut left = limit.max(1);
        let streams: Vec<_> = self.streams.keys().take(left).copied().collect();
        for key in &streams {
            self.delete_stream(key)?;
        }
        left -= streams.len();
        // Without streams no change of the other tables concerns a list.
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
