//! Calls of the journal: read in the background, and at once where a command or a relay port names one.

use crate::core::Core;
use std::sync::Arc;

/// What has not been read yet.
#[derive(Debug, Default)]
pub struct Restorer {}

impl Restorer {
    /// Restore the lines of a Call-ID, if the journal has any that are not in the book yet.
    pub async fn restore_call(&self, _core: &Arc<Core>, _call_id: &[u8]) {}

    /// Restore the lines that hold the ports in a reply.
    pub async fn restore_holders(&self, _core: &Arc<Core>, _reply: &[u8]) {}
}
