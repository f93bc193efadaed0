//! SIP messages of a call as a proxy's HEP trace shows them: each one that comes in, and each one that goes out.

use crate::Failure;
use shunt_hep::{Packet, PayloadKind};
use shunt_net::Endpoint;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the SIP server has its socket.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PORT: u16 = 5060;

/// A call, for the text of its messages.
pub struct Dialog<'a> {
    pub call_id: &'a str,
    pub number: u32,
    pub caller: SocketAddrV4,
    pub callee: SocketAddrV4,
    /// What the SDP names after the SIP server has put the relay into it.
    pub relay: [Option<SocketAddrV4>; 2],
}

#[derive(Clone, Copy)]
enum Message {
    Invite,
    Ack,
    Bye,
    Response(u16, &'static str, &'static str),
}

impl Dialog<'_> {
    /// What comes in and goes out until the callee is asked.
    pub fn invite(&self) -> Result<Vec<Vec<u8>>, Failure> {
        [
            self.copy(Message::Invite, true, true, Some(self.caller)),
            self.copy(Message::Response(100, "Giving a try", "INVITE"), true, false, None),
        ]
        .into_iter()
        .collect()
    }

    /// What comes in and goes out until the caller has the answer.
    pub fn answer(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let relay = self.relay;
        [
            self.copy(Message::Invite, false, false, relay[1]),
            self.copy(Message::Response(180, "Ringing", "INVITE"), false, true, None),
            self.copy(Message::Response(180, "Ringing", "INVITE"), true, false, None),
            self.copy(Message::Response(200, "OK", "INVITE"), false, true, Some(self.callee)),
        ]
        .into_iter()
        .collect()
    }

    /// What comes in and goes out once the caller has the answer.
    pub fn established(&self) -> Result<Vec<Vec<u8>>, Failure> {
        [
            self.copy(Message::Response(200, "OK", "INVITE"), true, false, self.relay[0]),
            self.copy(Message::Ack, true, true, None),
            self.copy(Message::Ack, false, false, None),
        ]
        .into_iter()
        .collect()
    }

    pub fn bye(&self) -> Result<Vec<Vec<u8>>, Failure> {
        [
            self.copy(Message::Bye, true, true, None),
            self.copy(Message::Bye, false, false, None),
            self.copy(Message::Response(200, "OK", "BYE"), false, true, None),
            self.copy(Message::Response(200, "OK", "BYE"), true, false, None),
        ]
        .into_iter()
        .collect()
    }

    /// A copy of a message between the SIP server and the caller, or the callee.
    fn copy(&self, message: Message, with_caller: bool, comes_in: bool, sdp: Option<SocketAddrV4>) -> Result<Vec<u8>, Failure> {
        let phone = Endpoint::new(*if with_caller { self.caller.ip() } else { self.callee.ip() }, PORT);
        let server = Endpoint::new(SERVER, PORT);
        let (source, destination) = if comes_in { (phone, server) } else { (server, phone) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let packet = Packet {
            source: Some(source),
            destination: Some(destination),
            kind: PayloadKind::Sip,
            protocol: 17,
            seconds: now.as_secs() as u32,
            microseconds: now.subsec_micros(),
            capture_id: 2001,
            correlation_id: self.call_id.as_bytes(),
            payload: Cow::Owned(self.text(message, sdp).into_bytes()),
        };
        Ok(packet.encode()?)
    }

    fn text(&self, message: Message, sdp: Option<SocketAddrV4>) -> String {
        let (number, caller) = (self.number, self.caller.ip());
        let uri = format!("sip:{number}@{}", self.callee.ip());
        let (start, sequence, method) = match message {
            Message::Invite => (format!("INVITE {uri} SIP/2.0"), 1, "INVITE"),
            Message::Ack => (format!("ACK {uri} SIP/2.0"), 1, "ACK"),
            Message::Bye => (format!("BYE {uri} SIP/2.0"), 2, "BYE"),
            Message::Response(code, phrase, method) => (format!("SIP/2.0 {code} {phrase}"), if method == "BYE" { 2 } else { 1 }, method),
        };
        let has_tag = !matches!(message, Message::Invite | Message::Response(100, ..));
        let tag = if has_tag { format!(";tag=b{number}") } else { String::new() };
        let body = sdp.map(sdp_of).unwrap_or_default();
        let mut text = format!(
            "{start}\r\nVia: SIP/2.0/UDP {caller}:{PORT};branch=z9hG4bK-{number}-{sequence}\r\nFrom: <sip:u{number}@{caller}>;tag=a{number}\r\n\
             To: <{uri}>{tag}\r\nCall-ID: {}\r\nCSeq: {sequence} {method}\r\nContact: <sip:u{number}@{caller}:{PORT}>\r\nMax-Forwards: 70\r\n\
             User-Agent: phone 1.0\r\n",
            self.call_id
        );
        if !body.is_empty() {
            text.push_str("Content-Type: application/sdp\r\n");
        }
        // A String takes everything.
        let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
        text
    }
}

fn sdp_of(media: SocketAddrV4) -> String {
    let (address, port) = (media.ip(), media.port());
    format!(
        "v=0\r\no=- 53655765 2353687637 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0 8 101\r\n\
         a=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:101 telephone-event/8000\r\na=sendrecv\r\n"
    )
}
