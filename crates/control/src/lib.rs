//! Control sockets of the rtpproxy protocol: listeners, and clients of relays.
//!
//! A [`Listener`] takes commands over udp, tcp, unix or cunix and has a [`Service`] execute them. A [`RelayClient`] sends commands to a relay
//! over the same kinds of sockets.
#![forbid(unsafe_code)]

mod client;
mod limits;
mod listener;
mod networks;
mod retransmissions;

pub use client::{ClientCounts, RelayClient, RelayError, Timing};
pub use limits::Rare;
pub use listener::{Counts, Listener, Options, Sender, Service, Statistics};
pub use networks::Network;
pub use retransmissions::{Limits, Retransmissions, Seen, Ticket};
