//! Captures: the calls that a client captures, as a stream of lines. `docs/admin-api.md` has their JSON.

use crate::text::Text;
use crate::view::CallView;
use serde::{Deserialize, Serialize};
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Selection of calls, running and future ones. Each given field must match; without any field all calls match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureFilter {
    /// A Call-ID, of the control channel or of SIP. The call must be running.
    pub call: Option<Text>,
    /// Part of the Call-ID.
    #[serde(rename = "match")]
    pub part: Option<Text>,
    /// Address of a party or relay port.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
}

/// A line of the stream.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum CaptureLine {
    /// The first line. `socket`: path of the softswitch's socket for captures.
    Begun { socket: String },
    /// A call that matches is there, or has changed.
    Update(Box<CallView>),
    /// A call no longer matches, or has ended.
    Ended { call: Text },
    /// A SIP message of a call that matches.
    Sip(Box<CapturedSip>),
    /// SIP messages were dropped because the client was slow.
    Missed { messages: u64 },
    /// Further calls match, but a capture has at most this number.
    Limit { calls: usize },
}

/// A SIP message from a HEP copy, unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapturedSip {
    /// The Call-ID of SIP.
    pub call: Text,
    /// Time of the copy, Unix time in µs.
    pub time_us: u64,
    pub source: Endpoint,
    pub destination: Endpoint,
    /// Number of the IP protocol: 17 UDP, 6 TCP.
    pub protocol: u8,
    pub message: Text,
}
