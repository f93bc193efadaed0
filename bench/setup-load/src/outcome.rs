//! What became of a load.

use serde::Serialize;

/// Commands of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Update,
    Lookup,
    Delete,
}

/// The commands of one verb.
#[derive(Debug, Default, Serialize)]
pub struct Commands {
    pub sent: u32,
    /// From the sending to the arrival of the reply in µs, by the kernel's time stamp, in order of arrival.
    pub delays_us: Vec<u32>,
}

/// Streams of one kind. There are two to a call, one from each party.
#[derive(Debug, Default, Serialize)]
pub struct Streams {
    pub sent: u64,
    pub received: u64,
    /// Packets that the data plane has forwarded.
    pub offloaded: u64,
    /// Streams of which the data plane has forwarded a packet.
    pub streams_offloaded: u32,
}

/// What became of a load.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    pub calls: u32,
    /// Calls of which every answer came in time.
    pub completed: u32,
    pub seconds: f64,
    pub update: Commands,
    pub lookup: Commands,
    pub delete: Commands,
    /// Replies that say no.
    pub errors: u32,
    /// The first of them.
    pub first_errors: Vec<String>,
    /// How late calls were begun, in µs.
    pub begun_late_us: Vec<u32>,
    pub rtp: Streams,
    pub rtcp: Streams,
    /// Packets that could not be sent at once.
    pub unsent: u64,
    pub hep_messages: u64,
    pub own_cpu_s: f64,
}

impl Outcome {
    pub fn commands(&mut self, verb: Verb) -> &mut Commands {
        match verb {
            Verb::Update => &mut self.update,
            Verb::Lookup => &mut self.lookup,
            Verb::Delete => &mut self.delete,
        }
    }
}
