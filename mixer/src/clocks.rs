//! What senders' reports say of their clocks, conference by conference: mixed audio and tiled video of one sender stay together.

use shunt_edge_media::Presentation;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// By conference. Times are since 1970.
#[derive(Default)]
pub struct Clocks(Mutex<HashMap<String, Presentation>>);

impl Clocks {
    pub fn with<R>(&self, conference: &str, look: impl FnOnce(&mut Presentation) -> R) -> R {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        look(all.entry(conference.to_owned()).or_default())
    }

    /// Nothing is made of it any more. What else is made of it waits for the senders' next reports.
    pub fn forget(&self, conference: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(conference);
    }
}
