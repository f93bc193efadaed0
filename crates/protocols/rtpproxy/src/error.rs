//! Why bytes are not a command, and the error numbers of replies.

use std::fmt;
use thiserror::Error;

/// The fault of a command or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("no cookie")]
    NoCookie,
    #[error("no command")]
    NoCommand,
    /// C programs would read less than this crate does.
    #[error("NUL byte")]
    Nul,
    #[error("nothing after &&")]
    NothingAfterAmpersands,
    #[error("{0} without {1}")]
    Missing(char, &'static str),
    #[error("port is not a number in 0..65535")]
    Port,
    #[error("modifier Z without a packet time")]
    Resize,
    #[error("modifier c needs a list of payload types, once")]
    Codecs,
    #[error("modifier l without an address")]
    LocalAddress,
    #[error("modifier R without an address")]
    RemoteAddress,
    #[error("notify tag with an invalid % escape")]
    NotifyTag,
    #[error("not one word")]
    NotOneWord,
    #[error("session time-out is not in 1..2000000000 s")]
    Ttl,
    #[error("Q with counter names needs a to-tag")]
    CountersWithoutToTag,
    #[error("reply is neither a port nor an error")]
    NoPort,
    #[error("reply does not fit the query")]
    Counters,
}

impl Fault {
    /// rtpproxy's error number for such a command.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::NothingAfterAmpersands | Self::Ttl => ErrorCode::BAD_SUBCOMMAND,
            Self::Missing(..) => ErrorCode::ARGUMENT_COUNT,
            Self::Port => ErrorCode::BAD_ADDRESS,
            Self::Resize => ErrorCode::BAD_RESIZE,
            Self::Codecs => ErrorCode::BAD_CODECS,
            Self::LocalAddress => ErrorCode::BAD_LOCAL_ADDRESS,
            Self::RemoteAddress => ErrorCode::BAD_REMOTE_ADDRESS,
            _ => ErrorCode::SYNTAX,
        }
    }
}

/// Bytes that violate the protocol; `at` is their offset in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} at byte {at}")]
pub struct ParseError {
    pub fault: Fault,
    pub at: usize,
}

impl ParseError {
    pub(crate) fn new(fault: Fault, at: usize) -> Self {
        Self { fault, at }
    }
}

/// The number of an error reply: 50 for `E50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub u16);

impl ErrorCode {
    pub const UNKNOWN_COMMAND: Self = Self(0);
    pub const ARGUMENT_COUNT: Self = Self(1);
    pub const MODIFIERS_NOT_ALLOWED: Self = Self(2);
    pub const BAD_SUBCOMMAND: Self = Self(3);
    pub const SYNTAX: Self = Self(5);
    pub const BAD_DELETE_MODIFIER: Self = Self(8);
    pub const BAD_STATISTICS_MODIFIER: Self = Self(9);
    pub const NO_EXTERNAL: Self = Self(11);
    pub const NO_INTERNAL: Self = Self(12);
    pub const BAD_RESIZE: Self = Self(13);
    pub const BAD_CODECS: Self = Self(14);
    pub const BAD_LOCAL_ADDRESS: Self = Self(15);
    pub const BAD_REMOTE_ADDRESS: Self = Self(16);
    pub const BAD_INFO_MODIFIER: Self = Self(18);
    pub const BAD_QUERY_MODIFIER: Self = Self(19);
    pub const LOCAL_ADDRESS_REFUSED: Self = Self(31);
    pub const REMOTE_ADDRESS_REFUSED: Self = Self(32);
    pub const UNKNOWN_MODIFIER: Self = Self(35);
    pub const NO_LOCAL_ADDRESS: Self = Self(36);
    pub const BAD_ADDRESS: Self = Self(37);
    pub const SESSION_NOT_FOUND: Self = Self(50);
    pub const CANNOT_PLAY: Self = Self(60);
    pub const UNKNOWN_QUERY_COUNTER: Self = Self(62);
    pub const CANNOT_RECORD: Self = Self(65);
    pub const UNKNOWN_GLOBAL_COUNTER: Self = Self(68);
    pub const NO_PORT_FOR_OTHER_LEG: Self = Self(71);
    pub const NO_PORT: Self = Self(72);
    pub const NOTIFY_OFF: Self = Self(75);
    pub const OVERLOAD: Self = Self(98);
    pub const DRAINING: Self = Self(99);

    /// (name, meaning) of rtpproxy 3.2; `None` for a number that it does not use.
    #[must_use]
    pub fn describe(self) -> Option<(&'static str, &'static str)> {
        Some(match self.0 {
            0 => ("unknown-command", "unknown command"),
            1 => ("argument-count", "wrong number of arguments"),
            2 => ("modifiers-not-allowed", "modifiers on a command that takes none"),
            3 => ("bad-subcommand", "unknown or misplaced && sub-command"),
            5 => ("syntax", "syntax error, or a cookie without a command"),
            8 => ("bad-delete-modifier", "unknown modifier on D; rtpengine: any error"),
            9 => ("bad-statistics-modifier", "unknown modifier on G"),
            10 => ("bad-notify-tag", "invalid URL encoding in the notify tag"),
            11 => ("no-external", "modifier E without bridging mode"),
            12 => ("no-internal", "modifier I without bridging mode"),
            13 => ("bad-resize", "modifier Z needs a packet time in ms"),
            14 => ("bad-codecs", "modifier c needs a list of payload types, once"),
            15 => ("bad-local-address", "modifier l needs an address"),
            16 => ("bad-remote-address", "modifier R needs an address"),
            18 => ("bad-info-modifier", "unknown modifier on I"),
            19 => ("bad-query-modifier", "unknown modifier on Q"),
            31 => ("local-address-refused", "the address of modifier l is not usable"),
            32 => ("remote-address-refused", "the address of modifier R is not usable"),
            35 => ("unknown-modifier", "unknown modifier on U or L"),
            36 => ("no-local-address", "no local address of that family"),
            37 => ("bad-address", "the media address is not an address"),
            50 => ("session-not-found", "no such session"),
            60 => ("cannot-play", "the announcement cannot be played"),
            62 => ("unknown-query-counter", "unknown counter name in Q"),
            65 => ("cannot-record", "the stream cannot be copied or recorded"),
            68 => ("unknown-global-counter", "unknown counter name in G"),
            71 => ("no-port", "no free port for the other leg"),
            72 => ("no-port", "no free port, or the session cannot be created"),
            75 => ("notify-off", "notification requested, but the relay was started without -n"),
            81..=89 => ("no-memory", "the relay is out of memory"),
            98 => ("overload", "the relay is overloaded"),
            99 => ("draining", "the relay takes no new sessions"),
            _ => return None,
        })
    }
}

/// As on the wire: `E50`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{}", self.0)
    }
}
