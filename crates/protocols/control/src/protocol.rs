//! The control protocols: framing of commands and replies, and properties of their clients and relays.

use shunt_ng::framing::{self as ng, FrameError};
use shunt_ng::{Encoding, build};
use shunt_rtpproxy::framing::{ControlAddress, MAX_COMMAND, take_line};
use shunt_rtpproxy::{ErrorCode, error_reply, split_datagram};
use thiserror::Error;

/// The protocol of a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// rtpproxy's protocol: one line for each command. Only datagrams have a cookie; on a connection replies come in the order of the
    /// commands.
    Rtpproxy,
    /// rtpengine's NG protocol: a cookie, a blank and a dictionary in bencode or JSON, which ends at its closing mark. The cookie assigns a
    /// reply to its command, so replies on a connection come in any order.
    Ng,
}

/// Error: the protocol is not spoken over such a socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}: the NG protocol is spoken over udp and tcp only")]
pub struct Unsupported(String);

/// The first command in the buffer of a connection.
pub struct Taken {
    /// Empty if the protocol has none.
    pub cookie: Vec<u8>,
    pub body: Vec<u8>,
    /// Bytes of the buffer.
    pub used: usize,
}

/// Error: the start of the next message is unknown, so the connection must be closed.
pub struct Broken {
    pub reason: String,
    /// Message for the client before the close.
    pub reply: Option<Vec<u8>>,
}

impl Protocol {
    /// # Errors
    /// The protocol is not spoken over this kind of socket.
    pub fn check(self, address: &ControlAddress) -> Result<(), Unsupported> {
        match (self, address) {
            (Self::Ng, ControlAddress::Unix(_) | ControlAddress::Cunix(_)) => Err(Unsupported(address.to_string())),
            _ => Ok(()),
        }
    }

    /// The longest command in bytes.
    #[must_use]
    pub fn max_command(self) -> usize {
        match self {
            Self::Rtpproxy => MAX_COMMAND,
            Self::Ng => ng::MAX_MESSAGE,
        }
    }

    /// Returns whether only the order of replies assigns them to commands on a connection.
    pub fn in_order(self) -> bool {
        self == Self::Rtpproxy
    }

    /// Returns the cookie and the body of a datagram; the body may be empty. `None`: there is no cookie.
    pub fn split(self, data: &[u8]) -> Option<(&[u8], &[u8])> {
        match self {
            Self::Rtpproxy => split_datagram(data).ok(),
            Self::Ng => match ng::split(data) {
                Ok(parts) => Some(parts),
                Err(FrameError::Empty) => Some((data.trim_ascii_end(), b"")),
                Err(_) => None,
            },
        }
    }

    /// Returns a command as a datagram.
    pub fn command(self, cookie: &[u8], body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy => [cookie, b" ", body].concat(),
            Self::Ng => ng::join(cookie, body),
        }
    }

    /// Returns a reply to a command with this cookie; an empty cookie means none.
    pub fn reply(self, cookie: &[u8], body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy if cookie.is_empty() => [body, b"\n"].concat(),
            Self::Rtpproxy => [cookie, b" ", body, b"\n"].concat(),
            Self::Ng => ng::join(cookie, body),
        }
    }

    /// Returns the answer to a body of the wrong size.
    pub fn refusal(self, body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy => error_reply(ErrorCode::SYNTAX),
            // As in rtpengine.
            Self::Ng if body.is_empty() => build::error("Invalid data (no payload)", Encoding::Bencode),
            Self::Ng if body.starts_with(b"{") => build::error("Message too long", Encoding::Json),
            Self::Ng => build::error("Message too long", Encoding::Bencode),
        }
    }

    /// Returns the answer to a datagram without a cookie; rtpengine gives none.
    pub fn without_cookie(self) -> Option<Vec<u8>> {
        match self {
            Self::Rtpproxy => Some(self.reply(b"", &error_reply(ErrorCode::SYNTAX))),
            Self::Ng => None,
        }
    }

    /// Returns the first command in the buffer of a connection; `None` until it is complete.
    pub fn take(self, buffer: &[u8]) -> Result<Option<Taken>, Broken> {
        match self {
            Self::Rtpproxy => match take_line(buffer) {
                Some((line, used)) => Ok(Some(Taken {
                    cookie: Vec::new(),
                    body: line.to_vec(),
                    used,
                })),
                None if buffer.len() <= MAX_COMMAND => Ok(None),
                None => Err(Broken {
                    reason: format!("no line end in {} bytes", buffer.len()),
                    reply: Some(self.reply(b"", &error_reply(ErrorCode::SYNTAX))),
                }),
            },
            Self::Ng => match ng::take(buffer) {
                Ok(taken) => Ok(taken.map(|(message, used)| Taken {
                    cookie: message.cookie.to_vec(),
                    body: message.body.to_vec(),
                    used,
                })),
                Err(error) => Err(Broken {
                    reason: error.to_string(),
                    reply: None,
                }),
            },
        }
    }
}
