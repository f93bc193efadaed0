//! Time-out notices: their destination and text.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use thiserror::Error;

const SELF: &str = "%%CC_SELF%%";

/// A notify socket of a SIP server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotifyTarget {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Why a notify socket is unusable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotifyError {
    #[error("notify socket {0:?} is neither tcp:ADDRESS:PORT nor unix:/PATH nor a path")]
    Scheme(String),
    #[error("notify socket {0:?}: it is not known where the command came from")]
    NoSelf(String),
    #[error("notify socket {0:?}: not an address")]
    Address(String),
    #[error("notify socket {0:?}: not a port")]
    Port(String),
}

impl NotifyTarget {
    /// Reads `tcp:ADDRESS:PORT`, `unix:/PATH` or a bare path (OpenSIPS strips `unix:`). The host `%%CC_SELF%%` is `peer`, the command's
    /// source.
    ///
    /// # Errors
    /// Other schemes, a host that is not an address, `%%CC_SELF%%` in a command over a Unix socket.
    pub fn parse(socket: &[u8], peer: Option<IpAddr>) -> Result<Self, NotifyError> {
        let shown = || socket.escape_ascii().to_string();
        let text = std::str::from_utf8(socket).map_err(|_| NotifyError::Scheme(shown()))?;
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.starts_with('/') {
            return Ok(Self::Unix(path.into()));
        }
        let (host, port) = text
            .strip_prefix("tcp:")
            .and_then(|rest| rest.rsplit_once(':'))
            .ok_or_else(|| NotifyError::Scheme(shown()))?;
        let host = if host == SELF {
            peer.ok_or_else(|| NotifyError::NoSelf(shown()))?
        } else {
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            host.parse().map_err(|_| NotifyError::Address(shown()))?
        };
        let port = crate::words::number(port.as_bytes(), 5).and_then(|port| u16::try_from(port).ok());
        match port {
            None | Some(0) => Err(NotifyError::Port(shown())),
            Some(port) => Ok(Self::Tcp(SocketAddr::new(host, port))),
        }
    }
}

impl fmt::Display for NotifyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The line that a relay sends to the notify socket at a media time-out: the URL-decoded tag and a newline.
#[must_use]
pub fn notify_line(tag: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(tag.len() + 1);
    let mut rest = tag;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escape = after.get(..2).filter(|_| byte == b'%');
        let decoded = escape.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        if let Some(decoded) = decoded {
            out.push(decoded);
            rest = &after[2..];
        } else {
            out.push(byte);
        }
    }
    out.push(b'\n');
    out
}
