//! Addresses of control sockets, and the end of a command or reply in a stream.
//!
//! Datagram: `<cookie> <command>`, answered by `<cookie> <reply>\n`. Stream (tcp, cunix, unix): no cookie. A newline ends a command and a
//! reply; only the reply to I has several lines.

use crate::words::{number, trim_line_end};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// The longest command in bytes, as rtpproxy's buffer.
pub const MAX_COMMAND: usize = 8192;
/// The longest accepted reply of a relay, in bytes.
pub const MAX_REPLY: usize = 65536;
/// `sun_path` without its NUL.
const MAX_PATH: usize = 107;

/// Where a relay listens for commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ControlAddress {
    Udp(SocketAddr),
    Tcp(SocketAddr),
    /// One command per connection.
    Unix(PathBuf),
    /// A persistent connection.
    Cunix(PathBuf),
}

/// Why a text is not a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a control socket: expected udp:, udp6:, tcp:, tcp6: with ADDRESS:PORT, or unix: or cunix: with a path")]
pub struct AddressError(String);

impl FromStr for ControlAddress {
    type Err = AddressError;

    /// `udp:ADDRESS:PORT` (also udp6, tcp, tcp6), `unix:PATH`, `cunix:PATH`, or a bare path (unix). `*` means every address.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let path = |path: &str| {
            let fits = !path.is_empty() && path.len() <= MAX_PATH && !path.contains('\0');
            fits.then(|| PathBuf::from(path)).ok_or_else(wrong)
        };
        if text.starts_with('/') {
            return path(text).map(Self::Unix);
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(wrong)?;
        match scheme {
            "unix" => path(rest).map(Self::Unix),
            "cunix" => path(rest).map(Self::Cunix),
            "udp" | "udp6" => socket(rest, scheme.ends_with('6')).map(Self::Udp).ok_or_else(wrong),
            "tcp" | "tcp6" => socket(rest, scheme.ends_with('6')).map(Self::Tcp).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

fn socket(text: &str, v6: bool) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let port = number(port.as_bytes(), 5).and_then(|port| u16::try_from(port).ok())?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match (bare, host) {
        (None, "" | "*") if v6 => Ipv6Addr::UNSPECIFIED.into(),
        (None, "" | "*") => Ipv4Addr::UNSPECIFIED.into(),
        (Some(host), _) => host.parse::<Ipv6Addr>().ok()?.into(),
        (None, host) if v6 => host.parse::<Ipv6Addr>().ok()?.into(),
        (None, host) => IpAddr::V4(host.parse().ok()?),
    };
    Some(SocketAddr::new(address, port))
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Cunix(path) => write!(f, "cunix:{}", path.display()),
        }
    }
}

/// The first whole line in a stream's buffer without its end, and its number of bytes there; `None` if it is incomplete.
#[must_use]
pub fn take_line(buffer: &[u8]) -> Option<(&[u8], usize)> {
    let end = buffer.iter().position(|&byte| byte == b'\n')?;
    Some((trim_line_end(&buffer[..end]), end + 1))
}

/// Length in bytes of the reply at the start of a stream's buffer; `None` while it is incomplete.
///
/// The last line of the reply to I is `packets transmitted:`, or with modifier l `average load:`.
#[must_use]
pub fn reply_length(command: &[u8], buffer: &[u8]) -> Option<usize> {
    let mut end = take_line(buffer)?.1;
    let word = crate::words::Words::new(command).next().map_or(&[][..], |(_, word)| word);
    let is_info = word.first().is_some_and(|letter| letter.eq_ignore_ascii_case(&b'I'));
    // The list of sessions is one line.
    let is_list = word.iter().any(|letter| letter.eq_ignore_ascii_case(&b's'));
    if !is_info || is_list || matches!(buffer.first(), Some(b'E' | b'e')) {
        return Some(end);
    }
    let with_load = word[1..].iter().any(|letter| letter.eq_ignore_ascii_case(&b'l'));
    let last: &[u8] = if with_load { b"average load:" } else { b"packets transmitted:" };
    let mut start = 0;
    while !buffer[start..].starts_with(last) {
        start = end;
        end += take_line(&buffer[end..])?.1;
    }
    Some(end)
}
