//! Commands and replies of a call in the rtpproxy protocol and in NG, as OpenSIPS sends and reads them.

use crate::outcome::Verb;
use clap::ValueEnum;
use std::net::{Ipv4Addr, SocketAddrV4};

/// What the relay speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    Rtpproxy,
    Ng,
}

/// What a command is about.
pub struct Session<'a> {
    pub call_id: &'a str,
    pub call: u32,
    pub caller: SocketAddrV4,
    pub callee: SocketAddrV4,
}

impl Protocol {
    /// A command without its cookie.
    pub fn command(self, verb: Verb, session: &Session<'_>) -> String {
        match self {
            Self::Rtpproxy => rtpproxy(verb, session),
            Self::Ng => ng(verb, session),
        }
    }

    /// What a reply without its cookie gives the party that is to send there. `None`: it is an error; `Some(None)`: it gives nothing.
    pub fn relay(self, verb: Verb, reply: &str) -> Option<Option<SocketAddrV4>> {
        match (self, verb) {
            (Self::Rtpproxy, Verb::Delete) => (reply.trim() == "0").then_some(None),
            (Self::Rtpproxy, _) => {
                let mut words = reply.split_ascii_whitespace();
                let port = words.next()?.parse().ok().filter(|port| *port != 0)?;
                let address: Ipv4Addr = words.next()?.parse().ok()?;
                Some(Some(SocketAddrV4::new(address, port)))
            }
            (Self::Ng, Verb::Delete) => reply.contains("6:result2:ok").then_some(None),
            (Self::Ng, _) => {
                let port = after(reply, "m=audio ")?.parse().ok().filter(|port| *port != 0)?;
                let address: Ipv4Addr = after(reply, "c=IN IP4 ")?.parse().ok()?;
                Some(Some(SocketAddrV4::new(address, port)))
            }
        }
    }
}

fn rtpproxy(verb: Verb, session: &Session<'_>) -> String {
    let Session {
        call_id,
        call,
        caller,
        callee,
    } = session;
    match verb {
        Verb::Update => format!("Uc0,8,101 {call_id} {} {} a{call};1", caller.ip(), caller.port()),
        Verb::Lookup => format!("Lc0,8,101 {call_id} {} {} a{call};1 b{call};1", callee.ip(), callee.port()),
        Verb::Delete => format!("D {call_id} a{call} b{call}"),
    }
}

fn ng(verb: Verb, session: &Session<'_>) -> String {
    let Session {
        call_id,
        call,
        caller,
        callee,
    } = session;
    let (from, to) = (format!("a{call}"), format!("b{call}"));
    let (command, party, tags) = match verb {
        Verb::Update => ("offer", caller, vec![("from-tag", from)]),
        Verb::Lookup => ("answer", callee, vec![("from-tag", from), ("to-tag", to)]),
        Verb::Delete => ("delete", caller, Vec::new()),
    };
    let mut fields = Vec::new();
    if verb != Verb::Delete {
        fields.push(("sdp", description(*party)));
    }
    fields.push(("call-id", (*call_id).to_owned()));
    fields.extend(tags);
    fields.push(("command", command.to_owned()));
    let fields: String = fields
        .iter()
        .map(|(key, value)| format!("{}:{key}{}:{value}", key.len(), value.len()))
        .collect();
    let address = party.ip().to_string();
    format!("d13:received-froml3:IP4{}:{address}e{fields}e", address.len())
}

fn description(end: SocketAddrV4) -> String {
    let (address, port) = (end.ip(), end.port());
    format!(
        "v=0\r\no=- 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0 8 101\r\na=rtpmap:0 PCMU/8000\r\n\
         a=rtpmap:8 PCMA/8000\r\na=rtpmap:101 telephone-event/8000\r\na=sendrecv\r\n"
    )
}

/// The word after a text.
fn after<'a>(reply: &'a str, text: &str) -> Option<&'a str> {
    reply.split_once(text)?.1.split_ascii_whitespace().next()
}
