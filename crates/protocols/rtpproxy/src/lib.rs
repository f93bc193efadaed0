//! The rtpproxy control protocol: commands, replies and time-out notices, as pure functions over bytes.
//!
//! A [`Command`] borrows from the datagram that it came in. It keeps the bytes as sent ([`Command::raw`]), so that a proxy passes on what it
//! does not understand unchanged: [`datagram`] and [`line`] write a command again with another cookie and with sub-commands added.
//!
//! Names follow the protocol: U (update, the offer), L (lookup, the answer), D (delete), Q (query). The reply to U has the port that the
//! callee sends to, the reply to L the one that the caller sends to. A session is one media line: the Call-ID and the tag of the first U with
//! its media index, `tag;1`.
#![forbid(unsafe_code)]

pub mod build;
pub mod capability;
mod command;
mod counters;
mod error;
pub mod framing;
pub mod listing;
mod media;
mod modifiers;
mod notify;
mod reply;
mod rewrite;
mod subcommand;
mod tag;
mod words;

pub use command::{Command, Request, Session, StreamVerb};
pub use counters::{Counter, DEFAULT_COUNTERS, add_counts, query_counters};
pub use error::{ErrorCode, Fault, ParseError};
pub use media::{Media, NotifyArguments};
pub use modifiers::{Direction, MediaFlags, Modifier, Modifiers, Symmetry, Value};
pub use notify::{NotifyError, NotifyTarget, notify_line};
pub use reply::{Info, PortReply, PortsReply, Reply, error_reply};
pub use rewrite::{datagram, keepalive_modifiers, line, splice_reply, with_new_port, with_notify_address};
pub use subcommand::Subcommand;
pub use tag::Tag;

/// The answer to V: the date of the basic protocol.
pub const PROTOCOL_VERSION: u32 = 20_040_107;

/// Splits a datagram into its cookie and the command or reply, without the line end; the body may be empty.
///
/// # Errors
/// The datagram has no cookie.
pub fn split_datagram(data: &[u8]) -> Result<(&[u8], &[u8]), ParseError> {
    let mut words = words::Words::new(data);
    let (at, cookie) = words.next().ok_or(ParseError::new(Fault::NoCookie, 0))?;
    let rest = &data[at + cookie.len()..];
    Ok((cookie, words::trim_line_end(words::trim_start(rest))))
}
