//! Control sockets of rtpproxy's and rtpengine's protocols: listeners, and clients of relays.
//!
//! A [`Listener`] receives commands over udp, tcp, unix or cunix and has a [`Service`] execute them. A [`RelayClient`] sends commands to a
//! relay over the same kinds of sockets. Both take the [`Protocol`]: protocols differ in the framing of a command and in the definition of
//! a retransmission, not in its execution.
#![forbid(unsafe_code)]

mod admission;
mod buffers;
mod client;
mod limits;
mod listener;
mod networks;
mod protocol;
mod retransmissions;

pub use admission::{Kind, Patience};
pub use client::{ClientCounts, Deadline, RelayClient, RelayError, Timing};
pub use limits::Rare;
pub use listener::{Counts, Listener, Options, Sender, Service, Statistics};
pub use networks::Network;
pub use protocol::{Protocol, Unsupported};
