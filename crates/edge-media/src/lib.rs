//! What an edge does to media between a browser and the data plane, beyond encryption: one continuous stream of several sources, sender
//! reports in one clock, reception reports, plain RTP, RTP over TCP, and the limit of packets from addresses that have shown no key. No I/O,
//! no clock: time comes in as an argument, as the duration since some fixed moment.
#![forbid(unsafe_code)]

mod continuity;
mod framing;
mod key_frame;
mod limit;
mod numbers;
mod plain;
mod presentation;
mod reception;
mod sdes;
mod sent;
mod user;

pub use continuity::{Continuity, Step};
pub use framing::{Frames, MOST as MOST_FRAME, head};
pub use key_frame::{Coding, starts_key_frame};
pub use limit::{Limit, Limits};
pub use plain::Plain;
pub use presentation::{Presentation, ntp_of_unix};
pub use reception::Reception;
pub use sdes::{cname, cname_item, sender_report};
pub use sent::Sent;
pub use user::local_user;
