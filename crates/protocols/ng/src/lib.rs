//! The NG protocol of rtpengine: commands, replies and what `query` tells, as pure functions over bytes.
//!
//! A message is `<cookie> <body>`, and a body is one dictionary, in bencode or in JSON ([`framing`], [`decode`]). A [`Command`] keeps the bytes
//! as sent ([`Command::raw`]), so that a proxy passes on what it does not understand unchanged. It says what the command asks of rtpengine that
//! only rtpengine can do ([`Command::needs`]), and what the command does to a call whose media bypasses rtpengine ([`Command::effect`]).
//! [`describe`] reads the reply to `query`: who is where, which ports face whom, and what is done to the packets on their way.
//!
//! Names of keys, flags and commands are those of rtpengine 10.5 to 26.3. Where a version reads more spellings than another, all are read here.
#![forbid(unsafe_code)]

mod bencode;
mod bits;
pub mod build;
mod command;
mod counts;
mod describe;
mod effect;
mod error;
pub mod framing;
mod json;
mod lines;
mod needs;
mod options;
mod reply;
pub mod rtpp_flags;
pub mod sdp;
mod statistics;
mod value;
mod verb;

pub use command::Command;
pub use counts::{Counts, add_counts};
pub use describe::{CallDescription, MediaDescription, MediaFlags, StreamDescription, StreamFlags, Subscription, Tag, describe};
pub use effect::{Cause, Effect, Whom};
pub use error::{Fault, FrameError, ParseError};
pub use lines::{LineDescription, PartyDescription, RelayReason};
pub use needs::Needs;
pub use options::{All, EndpointLearning, Ice, Options, RtcpMux};
pub use reply::{Reply, ReplyResult};
pub use statistics::{Statistics, statistics};
pub use value::{Encoding, MAX_DEPTH, MAX_ELEMENTS, Value, decode, encode};
pub use verb::Verb;
