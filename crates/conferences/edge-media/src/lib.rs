//! Media processing of an edge between a browser and the data plane. For both directions: one continuous stream of several sources, spatial
//! layers, sender reports in one clock, reception reports, plain RTP, RTP over TCP, and the limit of packets from addresses without a key.
//! Towards a browser: retransmission, transport-wide feedback, bandwidth estimation, and pacing. No I/O and no clock: time is an argument,
//! as the duration since some fixed moment.
#![forbid(unsafe_code)]

mod continuity;
mod estimate;
mod flight;
mod framing;
mod key_frame;
mod limit;
mod nomination;
mod numbers;
mod pacer;
mod plain;
mod presentation;
mod questions;
mod reception;
mod retransmission;
mod sdes;
mod sent;
mod spatial;
mod transport;
mod user;

pub use continuity::{Continuity, Step};
pub use estimate::{Estimator, Probe};
pub use flight::Flight;
pub use framing::{Frames, MOST as MOST_FRAME, head};
pub use key_frame::{Coding, starts_key_frame};
pub use limit::{Limit, Limits};
pub use nomination::{Came, Nominated};
pub use pacer::Pacer;
pub use plain::Plain;
pub use presentation::{BEHIND, Presentation, ntp_of_unix};
pub use questions::Questions;
pub use reception::Reception;
pub use retransmission::{Kept, Retransmissions};
pub use sdes::{cname, cname_item, cnames, read_cnames, sender_report};
pub use sent::Sent;
pub use spatial::{ALL as ALL_LAYERS, Layered, SpatialLayers, Verdict};
pub use transport::{Departure, Departures, Outcome};
pub use user::local_user;
