//! Control sockets of rtpproxy's and rtpengine's protocols: listeners, and clients of relays.
//!
//! A [`Listener`] takes commands over udp, tcp, unix or cunix and has a [`Service`] execute them. A [`RelayClient`] sends commands to a relay
//! over the same kinds of sockets. Both take the [`Protocol`] that is spoken: the two differ in how a command is framed and in what makes one
//! a repetition, not in how it is executed.
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
