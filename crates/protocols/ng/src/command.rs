//! A command: what it is, whom it is about, what it asks for.

use crate::effect::{Effect, Whom, effect};
use crate::error::{Fault, ParseError};
use crate::needs::Needs;
use crate::options::{Ice, Keys, Options};
use crate::sdp;
use crate::value::{Encoding, Value, decode};
use crate::verb::Verb;
use std::borrow::Cow;
use std::net::IpAddr;

/// One command as it was sent, without its cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// The body as sent.
    pub raw: &'a [u8],
    pub encoding: Encoding,
    pub verb: Verb,
    /// The value of `command` as sent.
    pub name: Cow<'a, [u8]>,
    pub call_id: Option<Cow<'a, [u8]>>,
    /// In an answer the tag of who made the offer.
    pub from_tag: Option<Cow<'a, [u8]>>,
    pub to_tag: Option<Cow<'a, [u8]>>,
    pub via_branch: Option<Cow<'a, [u8]>>,
    pub label: Option<Cow<'a, [u8]>>,
    pub to_label: Option<Cow<'a, [u8]>>,
    /// Parties by the address of their media, as sent.
    pub address: Option<Cow<'a, [u8]>>,
    pub from_tags: Vec<Cow<'a, [u8]>>,
    /// Further Call-IDs: `to-call-id` of connect, `source-call-id` of inject, `calls` of mesh.
    pub other_calls: Vec<Cow<'a, [u8]>>,
    pub sdp: Option<Cow<'a, [u8]>>,
    /// Where the SIP message came from.
    pub received_from: Option<IpAddr>,
    pub media_address: Option<IpAddr>,
    pub options: Options<'a>,
    needs: Needs,
}

impl<'a> Command<'a> {
    /// Read a body.
    ///
    /// # Errors
    /// It is no dictionary, or has no `command`.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let (encoding, value) = decode(body)?;
        let Value::Dictionary(entries) = value else {
            return Err(ParseError::new(Fault::Format, 0));
        };
        let mut keys = Keys::default();
        keys.read(entries);
        let name = keys.name.take().ok_or(ParseError::new(Fault::Missing("command"), 0))?;
        let verb = Verb::named(&name);
        let needs = needs(verb, &keys);
        Ok(Self {
            raw: body,
            encoding,
            verb,
            name,
            call_id: keys.call_id,
            from_tag: keys.from_tag,
            to_tag: keys.to_tag,
            via_branch: keys.via_branch,
            label: keys.label,
            to_label: keys.to_label,
            address: keys.address,
            from_tags: keys.from_tags,
            other_calls: keys.other_calls,
            sdp: keys.sdp,
            received_from: keys.received_from,
            media_address: keys.media_address,
            options: keys.options,
            needs,
        })
    }

    /// What rtpengine itself must do, by the keys, the flags and the SDP of this command.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// What this command does to a call whose media bypasses rtpengine.
    #[must_use]
    pub fn effect(&self) -> Effect {
        effect(self.verb, self.calls().next().is_some())
    }

    /// Whom of the call this command is about.
    #[must_use]
    pub fn whom(&self) -> Whom {
        Whom::of(self)
    }

    /// The Call-IDs of all calls that this command is about.
    pub fn calls(&self) -> impl Iterator<Item = &[u8]> {
        self.call_id.iter().chain(&self.other_calls).map(AsRef::as_ref)
    }
}

fn needs(verb: Verb, keys: &Keys<'_>) -> Needs {
    let mut needs = keys.needs;
    let sdp = keys.sdp.as_deref().map(sdp::scan).unwrap_or_default();
    needs |= sdp.needs;
    match keys.options.ice {
        Some(Ice::Remove) => {}
        Some(Ice::Force | Ice::Optional | Ice::ForceRelay) => needs |= Needs::ICE,
        Some(Ice::Default) | None if sdp.ice => needs |= Needs::ICE,
        Some(Ice::Default) | None => {}
    }
    if keys.accepts_bundle && sdp.bundle {
        needs |= Needs::BUNDLE;
    }
    let subscribes = [
        Verb::Publish,
        Verb::SubscribeRequest,
        Verb::SubscribeAnswer,
        Verb::Connect,
        Verb::Mesh,
        Verb::InjectStart,
    ];
    if subscribes.contains(&verb) {
        needs |= Needs::SUBSCRIPTIONS;
    }
    needs
}
