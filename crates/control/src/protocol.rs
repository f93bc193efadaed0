//! The control protocols: how commands and replies are framed, and what a client or relay that speaks one may expect.

use shunt_ng::framing::{self as ng, FrameError};
use shunt_ng::{Encoding, build};
use shunt_rtpproxy::framing::{ControlAddress, MAX_COMMAND, take_line};
use shunt_rtpproxy::{ErrorCode, error_reply, split_datagram};
use thiserror::Error;

/// What is spoken on a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// rtpproxy's: one line a command. A cookie is in datagrams only; on a connection replies come in the order of the commands.
    Rtpproxy,
    /// NG of rtpengine: a cookie, a blank and a dictionary in bencode or JSON, which ends where it is closed. The cookie says to which
    /// command a reply belongs, so on a connection replies come in any order.
    Ng,
}

/// A protocol that is not spoken over such a socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}: the NG protocol is spoken over udp and tcp only")]
pub struct Unsupported(String);

/// The first command in the buffer of a connection.
pub struct Taken {
    /// Empty where the protocol has none.
    pub cookie: Vec<u8>,
    pub body: Vec<u8>,
    /// Bytes of the buffer.
    pub used: usize,
}

/// A connection on which it is not known where the next message begins: it has to be closed.
pub struct Broken {
    pub reason: String,
    /// What the client is told before that.
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

    /// Whether only their order tells which reply belongs to which command on a connection.
    pub fn in_order(self) -> bool {
        self == Self::Rtpproxy
    }

    /// The cookie and the body of a datagram; the body may be empty. `None`: there is no cookie.
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

    /// A command as a datagram.
    pub fn command(self, cookie: &[u8], body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy => [cookie, b" ", body].concat(),
            Self::Ng => ng::join(cookie, body),
        }
    }

    /// A reply to a command with this cookie; an empty cookie is none.
    pub fn reply(self, cookie: &[u8], body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy if cookie.is_empty() => [body, b"\n"].concat(),
            Self::Rtpproxy => [cookie, b" ", body, b"\n"].concat(),
            Self::Ng => ng::join(cookie, body),
        }
    }

    /// The answer to a body that is no command because of its size.
    pub fn refusal(self, body: &[u8]) -> Vec<u8> {
        match self {
            Self::Rtpproxy => error_reply(ErrorCode::SYNTAX),
            // As rtpengine says it.
            Self::Ng if body.is_empty() => build::error("Invalid data (no payload)", Encoding::Bencode),
            Self::Ng if body.starts_with(b"{") => build::error("Message too long", Encoding::Json),
            Self::Ng => build::error("Message too long", Encoding::Bencode),
        }
    }

    /// The answer to a datagram without a cookie; rtpengine gives none.
    pub fn without_cookie(self) -> Option<Vec<u8>> {
        match self {
            Self::Rtpproxy => Some(self.reply(b"", &error_reply(ErrorCode::SYNTAX))),
            Self::Ng => None,
        }
    }

    /// The first command in the buffer of a connection; `None` while it is not complete.
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
