//! A SIP message: start line, dialog identifiers, Via, body.

use super::headers::{Headers, parameter, uri};
use super::lines::{is_blank, number, split_line, trim, words};
use super::sdp::Sdp;
use super::via::Via;
use std::borrow::Cow;
use std::cell::OnceCell;
use thiserror::Error;

/// Why bytes are not a SIP message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SipError {
    #[error("{0:?} is no SIP start line")]
    StartLine(String),
    #[error("{0:?} has no Call-ID")]
    NoCallId(String),
}

/// Request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start<'a> {
    Request { method: &'a [u8], uri: &'a [u8] },
    Response { status: u16, phrase: &'a [u8] },
}

/// What one message tells about its dialog.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub start: Start<'a>,
    headers: Headers<'a>,
    /// Both tags are read while parsing, because each message needs them several times.
    from_tag: Cow<'a, [u8]>,
    to_tag: Cow<'a, [u8]>,
    pub body: &'a [u8],
    sdp: OnceCell<Option<Sdp<'a>>>,
}

fn tag<'a>(header: &Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    match header {
        Cow::Borrowed(value) => Cow::Borrowed(parameter(value, b"tag").unwrap_or_default()),
        Cow::Owned(value) => Cow::Owned(parameter(value, b"tag").unwrap_or_default().to_vec()),
    }
}

impl<'a> Message<'a> {
    /// Reads one message.
    ///
    /// # Errors
    /// The start line or the Call-ID is unreadable.
    pub fn parse(data: &'a [u8]) -> Result<Self, SipError> {
        // Blank lines before a message are keep-alives of its connection (RFC 3261 section 7.5).
        let begin = data
            .iter()
            .position(|byte| !matches!(byte, b'\r' | b'\n' | 0 | b' ' | b'\t'))
            .unwrap_or(data.len());
        let (line, rest) = split_line(&data[begin..]);
        let shown = || line[..line.len().min(60)].escape_ascii().to_string();
        let start = start_line(trim(line)).ok_or_else(|| SipError::StartLine(shown()))?;
        let (headers, body) = Headers::read(rest);
        if headers.call_id.is_empty() {
            return Err(SipError::NoCallId(shown()));
        }
        Ok(Self {
            start,
            from_tag: tag(&headers.from),
            to_tag: tag(&headers.to),
            headers,
            body,
            sdp: OnceCell::new(),
        })
    }

    /// Whether a payload of kind SIP is only a keep-alive.
    #[must_use]
    pub fn is_keepalive(data: &[u8]) -> bool {
        data.iter().all(|byte| matches!(byte, b'\r' | b'\n' | 0 | b' ' | b'\t'))
    }

    #[must_use]
    pub fn call_id(&self) -> &[u8] {
        &self.headers.call_id
    }

    /// Empty where the header has none (RFC 2543).
    #[must_use]
    pub fn from_tag(&self) -> &[u8] {
        &self.from_tag
    }

    /// `None` outside of a dialog.
    #[must_use]
    pub fn to_tag(&self) -> Option<&[u8]> {
        (!self.to_tag.is_empty()).then_some(&*self.to_tag)
    }

    /// The method of a request.
    #[must_use]
    pub fn method(&self) -> Option<&'a [u8]> {
        match self.start {
            Start::Request { method, .. } => Some(method),
            Start::Response { .. } => None,
        }
    }

    /// The status of a response.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self.start {
            Start::Request { .. } => None,
            Start::Response { status, .. } => Some(status),
        }
    }

    /// The Request-URI of a request.
    #[must_use]
    pub fn request_uri(&self) -> Option<&'a [u8]> {
        match self.start {
            Start::Request { uri, .. } => Some(uri),
            Start::Response { .. } => None,
        }
    }

    /// The Reason-Phrase of a response (RFC 3261 section 7.2), which may be empty.
    #[must_use]
    pub fn phrase(&self) -> Option<&'a [u8]> {
        match self.start {
            Start::Request { .. } => None,
            Start::Response { phrase, .. } => Some(phrase),
        }
    }

    /// The URI of From, without parameters of the header.
    #[must_use]
    pub fn from_uri(&self) -> &[u8] {
        uri(&self.headers.from)
    }

    /// The URI of To, without parameters of the header.
    #[must_use]
    pub fn to_uri(&self) -> &[u8] {
        uri(&self.headers.to)
    }

    /// User-Agent, or Server; empty where the message has neither.
    #[must_use]
    pub fn user_agent(&self) -> &[u8] {
        &self.headers.user_agent
    }

    /// Reason (RFC 3326); empty where the message has none.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        &self.headers.reason
    }

    /// The method that a request has or a response answers; empty if unknown.
    #[must_use]
    pub fn cseq_method(&self) -> &[u8] {
        let mut words = words(&self.headers.cseq);
        let method = words
            .next()
            .filter(|word| word.iter().all(u8::is_ascii_digit))
            .and_then(|_| words.next());
        method
            .filter(|method| method.len() <= 32)
            .unwrap_or(self.method().unwrap_or_default())
    }

    #[must_use]
    pub fn cseq(&self) -> Option<u32> {
        words(&self.headers.cseq).next().and_then(number)
    }

    /// The topmost Via.
    #[must_use]
    pub fn via(&self) -> Option<Via<'_>> {
        Via::parse(&self.headers.via)
    }

    /// Number of Via values. A proxy forwarded a request with more than one: its transport address is not its sender's.
    #[must_use]
    pub fn vias(&self) -> usize {
        self.headers.vias
    }

    /// Number of Record-Route values, of proxies that stay in the dialog's path.
    #[must_use]
    pub fn record_routes(&self) -> usize {
        self.headers.record_routes
    }

    /// The session description in the body, also if it is one part of several.
    #[must_use]
    pub fn sdp(&self) -> Option<&Sdp<'a>> {
        self.sdp.get_or_init(|| Sdp::parse(self.body)).as_ref()
    }

    /// The Call-ID without a copy, if it is in one line.
    #[must_use]
    pub fn into_call_id(self) -> Cow<'a, [u8]> {
        self.headers.call_id
    }
}

fn start_line(line: &[u8]) -> Option<Start<'_>> {
    if line.len() >= 4 && line[..4].eq_ignore_ascii_case(b"SIP/") {
        return status(line);
    }
    let end = line.iter().position(|&byte| is_blank(byte))?;
    let (method, rest) = (&line[..end], trim(&line[end..]));
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b".!%*_+`'~-".contains(byte);
    let blank = rest.iter().rposition(|&byte| is_blank(byte))?;
    let (uri, version) = (trim(&rest[..blank]), &rest[blank + 1..]);
    let whole = (1..=32).contains(&method.len()) && method.iter().all(token) && is_version(version);
    whole.then_some(Start::Request { method, uri })
}

fn status(line: &[u8]) -> Option<Start<'_>> {
    let word = |text: &[u8]| text.iter().position(|&byte| is_blank(byte)).unwrap_or(text.len());
    let (version, rest) = line.split_at(word(line));
    let rest = trim(rest);
    let (code, phrase) = rest.split_at(word(rest));
    let status = number(code)
        .filter(|code| (100..700).contains(code))
        .and_then(|code| u16::try_from(code).ok())?;
    let phrase = trim(phrase);
    (is_version(version) && code.len() == 3).then_some(Start::Response { status, phrase })
}

fn is_version(word: &[u8]) -> bool {
    word.len() > 4 && word[..4].eq_ignore_ascii_case(b"SIP/") && word[4..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}
