//! Keys and flags of a command.

use crate::bits::bit_set;
use crate::needs::Needs;
use crate::rtpp_flags;
use crate::value::Value;
use std::borrow::Cow;
use std::net::IpAddr;

bit_set! {
    /// `rtcp-mux`: RTP and RTCP on one port.
    RtcpMux: u8 {
        /// Offered to the other side even if this one does not.
        OFFER = "offer",
        /// As if the other side had accepted it already.
        REQUIRE = "require",
        /// Accepted from this side, not offered to the other.
        DEMUX = "demux",
        ACCEPT = "accept",
        REJECT = "reject",
    }
}

/// The key `ICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ice {
    Remove,
    Force,
    Default,
    Optional,
    ForceRelay,
}

/// When a party's address is taken from its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointLearning {
    Off,
    /// From the first packet on.
    Immediate,
    /// Until the first packet that comes 3 s after the signalling.
    Delayed,
    Heuristic,
}

/// The key `all`, or the flag of this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum All {
    #[default]
    None,
    All,
    OfferAnswer,
    ExceptOfferAnswer,
    Flows,
}

/// What keys and flags say besides whom a command is about. None of them is a reason by itself to keep media on rtpengine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// Packets from another source than the learned one are dropped.
    pub strict_source: bool,
    /// The endpoint follows any source, at any time.
    pub media_handover: bool,
    /// Nothing is learned from packets.
    pub asymmetric: bool,
    pub symmetric: bool,
    /// Ports stay when a party's port changes.
    pub port_latching: bool,
    pub no_port_latching: bool,
    pub trust_address: bool,
    /// The address is that of the SIP message ([`Command::received_from`](crate::Command::received_from)), not the SDP's.
    pub sip_source_address: bool,
    /// Nothing goes to a party before a packet came from it.
    pub nat_wait: bool,
    /// Empty packets go to a party until one came from it.
    pub pierce_nat: bool,
    pub unidirectional: bool,
    pub original_sendrecv: bool,
    pub no_rtcp_attribute: bool,
    /// An SDP that passed this rtpengine already stays as it is.
    pub loop_protect: bool,
    /// What was learned of a party is forgotten.
    pub reset: bool,
    /// The SDP is a part with candidates alone.
    pub fragment: bool,
    /// A from-tag selects a party of a block command.
    pub directional: bool,
    pub bidirectional: bool,
    pub egress: bool,
    /// delete: an unknown call is an error.
    pub fatal: bool,
    /// DTMF events are reported somewhere, so rtpengine must see them.
    pub dtmf_log: bool,
    /// stop recording: to be resumed.
    pub pause: bool,
    /// play media: more than once.
    pub repeats: bool,
    pub all: All,
    pub rtcp_mux: RtcpMux,
    pub ice: Option<Ice>,
    pub endpoint_learning: Option<EndpointLearning>,
    pub transport_protocol: Option<Cow<'a, [u8]>>,
    /// The named interfaces of this side and the other.
    pub direction: [Option<Cow<'a, [u8]>>; 2],
    /// `IP4` or `IP6`.
    pub address_family: Option<Cow<'a, [u8]>>,
    /// TOS of what rtpengine sends; 0 to 255, else its default.
    pub tos: Option<i64>,
    pub delete_delay: Option<i64>,
    pub limit: Option<i64>,
    /// Where rtpengine reports a time-out of this call; `%%` in it is the sender of the command.
    pub xmlrpc_callback: Option<Cow<'a, [u8]>>,
}

/// What is read from keys and flags, in one pass.
#[derive(Default)]
pub(crate) struct Keys<'a> {
    pub name: Option<Cow<'a, [u8]>>,
    pub call_id: Option<Cow<'a, [u8]>>,
    pub from_tag: Option<Cow<'a, [u8]>>,
    pub to_tag: Option<Cow<'a, [u8]>>,
    pub via_branch: Option<Cow<'a, [u8]>>,
    pub label: Option<Cow<'a, [u8]>>,
    pub to_label: Option<Cow<'a, [u8]>>,
    pub address: Option<Cow<'a, [u8]>>,
    pub sdp: Option<Cow<'a, [u8]>>,
    pub from_tags: Vec<Cow<'a, [u8]>>,
    pub other_calls: Vec<Cow<'a, [u8]>>,
    pub received_from: Option<IpAddr>,
    pub media_address: Option<IpAddr>,
    /// `bundle=accept` has an effect only on an SDP that is bundled.
    pub accepts_bundle: bool,
    pub needs: Needs,
    pub options: Options<'a>,
}

/// A key or flag in the one spelling that is compared: rtpengine reads blank, dash and underscore alike in most names, and both cases of
/// abbreviations.
fn normal(name: &[u8]) -> String {
    let spell = |&byte: &u8| match byte {
        b' ' | b'_' => '-',
        other => char::from(other.to_ascii_lowercase()),
    };
    name.iter().take(64).map(spell).collect()
}

impl<'a> Keys<'a> {
    /// Read the entries of a command, or of a string of flags.
    pub(crate) fn read(&mut self, entries: Vec<(Cow<'a, [u8]>, Value<'a>)>) {
        for (key, value) in entries {
            self.key(&key, value);
        }
    }

    fn key(&mut self, key: &[u8], value: Value<'a>) {
        let name = normal(key);
        match name.as_str() {
            "command" => first(&mut self.name, value),
            "call-id" => first(&mut self.call_id, value),
            "from-tag" => first(&mut self.from_tag, value),
            "to-tag" => first(&mut self.to_tag, value),
            "via-branch" => first(&mut self.via_branch, value),
            "label" | "from-label" => first(&mut self.label, value),
            "to-label" => first(&mut self.to_label, value),
            "address" => first(&mut self.address, value),
            "sdp" => first(&mut self.sdp, value),
            "from-tags" => self.from_tags.extend(texts(value)),
            "to-call-id" | "source-call-id" | "calls" => self.other_calls.extend(texts(value)),
            "received-from" => self.received_from = self.received_from.or_else(|| received_from(&value)),
            "media-address" => self.media_address = value.text().and_then(address),
            "flags" => texts(value).for_each(|flag| self.flag(&flag)),
            "rtpp-flags" => {
                if let Value::Text(text) = value {
                    self.string(text);
                }
            }
            "transport-protocol" => self.transport(value),
            "from-interface" => self.options.direction[0] = texts(value).next(),
            "to-interface" => self.options.direction[1] = texts(value).next(),
            "direction" => {
                let mut names = texts(value);
                self.options.direction = [names.next(), names.next()];
            }
            "address-family" => first(&mut self.options.address_family, value),
            "xmlrpc-callback" => first(&mut self.options.xmlrpc_callback, value),
            _ => self.option(&name, value),
        }
    }

    /// A key whose value is a number or a few words.
    fn option(&mut self, name: &str, value: Value<'a>) {
        match name {
            "tos" => self.options.tos = value.number(),
            "delete-delay" => self.options.delete_delay = value.number(),
            "limit" => self.options.limit = value.number(),
            "pause" => self.options.pause |= is_on(&value),
            "dtmf-log-dest" | "dtmf-log-destination" => self.options.dtmf_log = true,
            "ptime" | "ptime-reverse" | "reverse-ptime" => self.need(value.number() != Some(0), Needs::TRANSCODING),
            "delay-buffer" => self.need(value.number() != Some(0), Needs::DELAY_BUFFER),
            "dtmf-delay" => self.need(value.number() != Some(0), Needs::BLOCK_DTMF),
            "record-call" => self.need(is_on(&value), Needs::RECORDING),
            "generate-rtcp" => self.need(is_on(&value), Needs::GENERATE_RTCP),
            "media-echo" => self.need(true, Needs::MEDIA_ECHO),
            "template" => self.need(true, Needs::TEMPLATE),
            "moh" => self.need(true, Needs::AUDIO_PLAYER),
            "t.38" | "t38" => self.need(true, Needs::T38),
            "extmap" => self.need(value.get("mask").is_some(), Needs::EXTMAP),
            "codec" | "codecs" => value.dictionary().iter().for_each(|(operation, _)| self.codec(operation)),
            "repeat-times" | "repeat-duration" => self.options.repeats = true,
            _ if name.starts_with("vsc-") => self.need(true, Needs::RECORDING_VSC),
            _ => self.words(name, value),
        }
    }

    /// A key whose value is a list of words, or one text with commas.
    fn words(&mut self, name: &str, value: Value<'a>) {
        for item in texts(value) {
            for word in item.split(|&byte| byte == b',') {
                self.word(name, &normal(word));
            }
        }
    }

    fn word(&mut self, name: &str, word: &str) {
        match (name, word) {
            ("rtcp-mux", _) => self.options.rtcp_mux |= RtcpMux::named(word.as_bytes()).unwrap_or_default(),
            ("ice", _) => self.options.ice = ice(word).or(self.options.ice),
            ("endpoint-learning", _) => self.options.endpoint_learning = learning(word),
            ("all", _) => self.options.all = all(word),
            ("drop-traffic", "start") => self.need(true, Needs::DROP_TRAFFIC),
            ("osrtp", "offer" | "offer-rfc" | "offer-legacy") => self.need(true, Needs::SRTP),
            ("bundle", "accept") => self.accepts_bundle = true,
            ("bundle", "offer" | "require" | "strict") => self.need(true, Needs::BUNDLE),
            ("dtmf-security" | "dtmf-security-trigger" | "dtmf-security-trigger-end", _) => self.need(word != "off", Needs::BLOCK_DTMF),
            ("audio-player" | "player", _) => {
                let off = matches!(word, "default" | "no" | "off" | "disable" | "disabled");
                self.need(!off, Needs::AUDIO_PLAYER);
            }
            // Only a string of flags has codec operations as keys of their own; in a dictionary rtpengine passes over them.
            _ => {
                if let Some(operation) = name.strip_prefix("codec-").or((name == "transcode").then_some(name)) {
                    self.codec(operation.as_bytes());
                }
            }
        }
    }

    fn codec(&mut self, operation: &[u8]) {
        let engages = matches!(operation, b"transcode" | b"mask" | b"set" | b"accept" | b"consume" | b"ignore");
        self.need(engages, Needs::TRANSCODING);
    }

    /// One of `flags`.
    fn flag(&mut self, flag: &[u8]) {
        let name = normal(flag);
        let options = &mut self.options;
        match name.as_str() {
            "strict-source" => options.strict_source = true,
            "media-handover" => options.media_handover = true,
            "asymmetric" => options.asymmetric = true,
            "symmetric" => options.symmetric = true,
            "port-latching" => options.port_latching = true,
            "no-port-latching" => options.no_port_latching = true,
            "trust-address" => options.trust_address = true,
            "sip-source-address" => options.sip_source_address = true,
            "nat-wait" => options.nat_wait = true,
            "pierce-nat" => options.pierce_nat = true,
            "unidirectional" => options.unidirectional = true,
            "original-sendrecv" => options.original_sendrecv = true,
            "no-rtcp-attribute" => options.no_rtcp_attribute = true,
            "loop-protect" => options.loop_protect = true,
            "reset" => options.reset = true,
            "fragment" => options.fragment = true,
            "directional" => options.directional = true,
            "bidirectional" => options.bidirectional = true,
            "egress" => options.egress = true,
            "fatal" => options.fatal = true,
            "pause" => options.pause = true,
            "all" => options.all = All::All,
            "record-call" => self.need(true, Needs::RECORDING),
            "recording-vsc" => self.need(true, Needs::RECORDING_VSC),
            "recording-announcement" | "audio-player" | "player" => self.need(true, Needs::AUDIO_PLAYER),
            "always-transcode" | "force-transcoding" => self.need(true, Needs::TRANSCODING),
            "block-dtmf" => self.need(true, Needs::BLOCK_DTMF),
            "detect-dtmf" => self.need(true, Needs::DETECT_DTMF),
            "inject-dtmf" => self.need(true, Needs::INJECT_DTMF),
            "generate-rtcp" => self.need(true, Needs::GENERATE_RTCP),
            "block-short" | "block-shorts" | "block-short-packets" => self.need(true, Needs::BLOCK_SHORT),
            "webrtc" => {
                self.options.ice = Some(Ice::Force);
                self.options.rtcp_mux |= RtcpMux::OFFER | RtcpMux::REQUIRE;
                self.need(true, Needs::SRTP | Needs::DTLS | Needs::ICE);
            }
            _ => self.prefixed_flag(flag, &name),
        }
    }

    /// A flag that stands for a key with a value: `rtcp-mux-demux`, `transcode-PCMA`.
    fn prefixed_flag(&mut self, flag: &[u8], name: &str) {
        const KEYS: [&str; 6] = ["rtcp-mux", "ice", "endpoint-learning", "osrtp", "bundle", "audio-player"];
        let rest = |prefix: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty());
        for key in KEYS {
            if let Some(word) = rest(key).and_then(|rest| rest.strip_prefix('-')) {
                return self.word(key, word);
            }
        }
        if rest("t38-").or(rest("t.38-")).is_some() {
            return self.need(true, Needs::T38);
        }
        if rest("transcode-").is_some() {
            return self.need(true, Needs::TRANSCODING);
        }
        if let Some((operation, _)) = rest("codec-").and_then(|rest| rest.split_once('-')) {
            return self.codec(operation.as_bytes());
        }
        if rest("from-tags-").is_some() {
            self.from_tags.push(Cow::Owned(flag["from-tags-".len()..].to_vec()));
        }
    }

    /// The key `rtpp-flags`: all flags in one string.
    fn string(&mut self, text: Cow<'a, [u8]>) {
        let mut directions = 0;
        for (key, value) in rtpp_flags::read(&text) {
            let Some(value) = value else {
                match key {
                    b"internal" | b"external" => self.direction(&mut directions, key),
                    b"SRTP" | b"RTP/SAVP" | b"RTP/SAVPF" => self.need(true, Needs::SRTP),
                    b"DTLS" | b"UDP/TLS/RTP/SAVP" | b"UDP/TLS/RTP/SAVPF" => self.need(true, Needs::SRTP | Needs::DTLS),
                    _ => self.flag(key),
                }
                continue;
            };
            match (key, &value) {
                (b"direction", Value::Text(name)) => self.direction(&mut directions, name),
                (b"to-tag", Value::Text(tag)) => self.to_tag = Some(Cow::Owned(tag.to_vec())),
                (b"from-tag", Value::Text(tag)) => {
                    self.from_tag = Some(Cow::Owned(tag.to_vec()));
                    self.options.directional = true;
                }
                _ => self.key(key, owned(value)),
            }
        }
    }

    fn direction(&mut self, count: &mut usize, name: &[u8]) {
        if let Some(place) = self.options.direction.get_mut(*count) {
            *place = Some(Cow::Owned(name.to_vec()));
            *count += 1;
        }
    }

    fn transport(&mut self, value: Value<'a>) {
        if let Some(protocol) = value.text() {
            self.needs |= protocol_needs(protocol);
        }
        first(&mut self.options.transport_protocol, value);
    }

    fn need(&mut self, whether: bool, needs: Needs) {
        if whether {
            self.needs |= needs;
        }
    }
}

/// What a transport protocol asks for.
pub(crate) fn protocol_needs(protocol: &[u8]) -> Needs {
    let upper = protocol.to_ascii_uppercase();
    let has = |part: &[u8]| upper.windows(part.len()).any(|window| window == part);
    let mut needs = Needs::NONE;
    if has(b"SAVP") {
        needs |= Needs::SRTP;
    }
    if has(b"TLS") {
        needs |= Needs::DTLS;
    }
    if has(b"UDPTL") {
        needs |= Needs::T38;
    }
    needs
}

/// A text whose borrow ends with the string of flags, as one of its own.
fn owned<'a>(value: Value<'_>) -> Value<'a> {
    match value {
        Value::Integer(value) => Value::Integer(value),
        Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
        Value::List(items) => Value::List(items.into_iter().map(owned).collect()),
        Value::Dictionary(entries) => {
            let entries = entries.into_iter();
            Value::Dictionary(entries.map(|(key, value)| (Cow::Owned(key.into_owned()), owned(value))).collect())
        }
    }
}

fn first<'a>(place: &mut Option<Cow<'a, [u8]>>, value: Value<'a>) {
    if let (None, Value::Text(text)) = (&place, value) {
        *place = Some(text);
    }
}

/// A text, or the texts of a list.
fn texts(value: Value<'_>) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let items = match value {
        Value::List(items) => items,
        other => vec![other],
    };
    items.into_iter().filter_map(|item| match item {
        Value::Text(text) => Some(text),
        _ => None,
    })
}

fn is_on(value: &Value<'_>) -> bool {
    value
        .text()
        .is_some_and(|text| matches!(normal(text).as_str(), "yes" | "on" | "true" | "enable" | "enabled"))
}

fn received_from(value: &Value<'_>) -> Option<IpAddr> {
    let text = match value {
        Value::List(items) => items.get(1)?.text()?,
        other => other.text()?,
    };
    address(text)
}

/// An address as rtpengine and the SIP servers write it; IPv6 perhaps in brackets.
pub(crate) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok()
}

fn ice(word: &str) -> Option<Ice> {
    Some(match word {
        "remove" => Ice::Remove,
        "force" => Ice::Force,
        "default" => Ice::Default,
        "optional" => Ice::Optional,
        "force-relay" => Ice::ForceRelay,
        _ => return None,
    })
}

fn learning(word: &str) -> Option<EndpointLearning> {
    Some(match word {
        "off" => EndpointLearning::Off,
        "immediate" => EndpointLearning::Immediate,
        "delayed" => EndpointLearning::Delayed,
        "heuristic" => EndpointLearning::Heuristic,
        _ => return None,
    })
}

fn all(word: &str) -> All {
    match word {
        "all" => All::All,
        "offer-answer" => All::OfferAnswer,
        "not-offer-answer" | "non-offer-answer" | "except-offer-answer" => All::ExceptOfferAnswer,
        "flows" => All::Flows,
        _ => All::None,
    }
}
