//! Replies.

use crate::error::ParseError;
use crate::needs::Needs;
use crate::sdp;
use crate::value::{Encoding, Value, decode};
use std::borrow::Cow;

/// The key `result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyResult<'a> {
    Ok,
    Pong,
    /// With `error-reason`.
    Error(Cow<'a, [u8]>),
    /// Only for a command that supports it.
    LoadLimit,
    /// Another result, or none: a notification of rtpengine has no `result`.
    Other,
}

/// A reply, or a notification, without its cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub encoding: Encoding,
    pub result: ReplyResult<'a>,
    /// delete: there was no such call.
    pub warning: Option<Cow<'a, [u8]>>,
    pub sdp: Option<Cow<'a, [u8]>>,
    /// The call is recorded.
    pub recordings: bool,
    /// query, and delete of a party: when the call began.
    pub created: Option<i64>,
    /// list.
    pub calls: Vec<Cow<'a, [u8]>>,
    /// publish, create: of the call, if the command did not name one.
    pub call_id: Option<Cow<'a, [u8]>>,
    /// subscribe request: the new party.
    pub to_tag: Option<Cow<'a, [u8]>>,
    /// play media: how long, in milliseconds.
    pub duration: Option<i64>,
    /// The subject of a notification: `onDTMF`.
    pub notify: Option<Cow<'a, [u8]>>,
}

impl<'a> Reply<'a> {
    /// Read a body.
    ///
    /// # Errors
    /// It is no dictionary.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let (encoding, value) = decode(body)?;
        let Value::Dictionary(entries) = value else {
            return Err(ParseError::new(crate::Fault::Format, 0));
        };
        let mut reply = Self {
            encoding,
            result: ReplyResult::Other,
            warning: None,
            sdp: None,
            recordings: false,
            created: None,
            calls: Vec::new(),
            call_id: None,
            to_tag: None,
            duration: None,
            notify: None,
        };
        let mut reason = Cow::default();
        for (key, value) in entries {
            match (key.as_ref(), value) {
                (b"result", Value::Text(text)) => reply.result = result(&text),
                (b"error-reason", Value::Text(text)) => reason = text,
                (b"warning", Value::Text(text)) => reply.warning = Some(text),
                (b"sdp", Value::Text(text)) => reply.sdp = Some(text),
                (b"call-id", Value::Text(text)) => reply.call_id = Some(text),
                (b"to-tag", Value::Text(text)) => reply.to_tag = Some(text),
                (b"notify", Value::Text(text)) => reply.notify = Some(text),
                (b"recordings", value) => reply.recordings = !value.list().is_empty(),
                (b"created", value) => reply.created = value.number(),
                (b"duration", value) => reply.duration = value.number(),
                (b"calls", Value::List(items)) => {
                    let text = |item| match item {
                        Value::Text(text) => Some(text),
                        _ => None,
                    };
                    reply.calls = items.into_iter().filter_map(text).collect();
                }
                _ => {}
            }
        }
        if let ReplyResult::Error(place) = &mut reply.result {
            *place = reason;
        }
        Ok(reply)
    }

    /// Whether rtpengine did what was asked.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self.result, ReplyResult::Ok | ReplyResult::Pong)
    }

    /// What the reply's SDP tells the other side: SRTP, DTLS, ICE, T.38.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let sdp = self.sdp.as_deref().map(sdp::scan).unwrap_or_default();
        if sdp.ice { sdp.needs | Needs::ICE } else { sdp.needs }
    }
}

fn result<'a>(text: &[u8]) -> ReplyResult<'a> {
    match text {
        b"ok" => ReplyResult::Ok,
        b"pong" => ReplyResult::Pong,
        b"error" => ReplyResult::Error(Cow::default()),
        b"load limit" => ReplyResult::LoadLimit,
        _ => ReplyResult::Other,
    }
}
