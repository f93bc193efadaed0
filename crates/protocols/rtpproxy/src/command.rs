//! A command: its verb, its subject, and its sub-commands.

use crate::error::{Fault, ParseError};
use crate::media::Media;
use crate::modifiers::{MediaFlags, Modifiers};
use crate::tag::Tag;
use crate::words::{Words, trim, trim_line_end};

/// One command as it was sent, without cookie and line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// The bytes as sent.
    pub raw: &'a [u8],
    pub request: Request<'a>,
    /// The text after the verb, as sent.
    pub modifiers: &'a [u8],
    /// Arguments without a field here: counter names of Q and G, the date of VF, the target of C, file and codecs of P.
    pub arguments: Vec<&'a [u8]>,
    /// The text after each `&&`, without surrounding blanks.
    pub subcommands: Vec<&'a [u8]>,
}

/// The request of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// U: an offer.
    Update(Media<'a>),
    /// L: an answer.
    Lookup(Media<'a>),
    /// D.
    Delete(Session<'a>),
    /// Q.
    Query(Session<'a>),
    /// P, S, C, R and N.
    Stream(StreamVerb, Session<'a>),
    /// V.
    Version,
    /// VF; the first argument is the date.
    Capability,
    /// I.
    Info,
    /// G.
    Statistics,
    /// X.
    DeleteAll,
    /// A verb unknown in all versions. A newer relay may know it.
    Unknown,
}

/// Commands on one stream besides U, L, D and Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamVerb {
    /// P: play an announcement.
    Play,
    /// S: stop playing.
    StopPlaying,
    /// C: copy to a target.
    Copy,
    /// R: record.
    Record,
    /// N: stop recording.
    StopRecording,
}

/// The session that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<'a> {
    pub call_id: &'a [u8],
    pub from: Tag<'a>,
    pub to: Option<Tag<'a>>,
}

type Word<'a> = (usize, &'a [u8]);

/// The unparsed parts of a command.
struct Parts<'a> {
    verb: char,
    args: Vec<Word<'a>>,
    /// Where the next argument would begin.
    end: usize,
}

impl<'a> Command<'a> {
    /// Reads a command (without cookie; drops a line end).
    ///
    /// # Errors
    /// As rtpproxy: too few arguments for the verb, a port that is not a number, a modifier without its argument, a NUL byte.
    /// Unknown verbs, unknown modifiers and extra arguments are kept.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let raw = trim_line_end(body);
        if let Some(at) = raw.iter().position(|&byte| byte == 0) {
            return Err(ParseError::new(Fault::Nul, at));
        }
        let mut words = Words::new(raw);
        let (at, word) = words
            .next()
            .filter(|(_, word)| *word != b"&&")
            .ok_or(ParseError::new(Fault::NoCommand, 0))?;
        let mut args = Vec::with_capacity(8);
        let mut mark = None;
        for (at, word) in words {
            if word == b"&&" {
                mark = Some(at);
                break;
            }
            args.push((at, word));
        }
        let subcommands = mark.map_or(Ok(Vec::new()), |mark| split_subcommands(raw, mark))?;
        let (verb, modifiers) = split_verb(word);
        let parts = Parts {
            verb,
            args,
            end: raw.len(),
        };
        let modifiers_at = at + word.len() - modifiers.len();
        let (request, arguments) = parts.read(modifiers, modifiers_at)?;
        Ok(Self {
            raw,
            request,
            modifiers,
            arguments,
            subcommands,
        })
    }

    /// The session that the command names, if any.
    #[must_use]
    pub fn session(&self) -> Option<&Session<'a>> {
        match &self.request {
            Request::Update(media) | Request::Lookup(media) => Some(&media.session),
            Request::Delete(session) | Request::Query(session) | Request::Stream(_, session) => Some(session),
            _ => None,
        }
    }

    /// The part that only U and L have.
    #[must_use]
    pub fn media(&self) -> Option<&Media<'a>> {
        match &self.request {
            Request::Update(media) | Request::Lookup(media) => Some(media),
            _ => None,
        }
    }

    /// Whether a letter, in either case, is among the modifiers. Not for U and L, whose letters have arguments: [`Media::flags`].
    #[must_use]
    pub fn has_modifier(&self, letter: u8) -> bool {
        self.modifiers.iter().any(|byte| byte.eq_ignore_ascii_case(&letter))
    }

    /// The modifiers of U or L one by one.
    #[must_use]
    pub fn media_modifiers(&self) -> Modifiers<'a> {
        Modifiers::new(self.modifiers)
    }

    /// The answer in `U callid ip port f;1 t;1 && L ip2 port2`, with the Call-ID and the tags of the U.
    ///
    /// # Errors
    /// The sub-command exists but is malformed.
    pub fn sub_lookup(&self) -> Result<Option<Media<'a>>, ParseError> {
        let Some(outer) = self.media() else { return Ok(None) };
        for part in &self.subcommands {
            let mut words = Words::new(part);
            let (Some((_, word)), Some(address), Some(port), None) = (words.next(), words.next(), words.next(), words.next()) else {
                continue;
            };
            if word[0].eq_ignore_ascii_case(&b'L') {
                let flags = MediaFlags::parse(&word[1..]).map_err(|error| ParseError::new(error.fault, error.at + 1))?;
                return Media::answer(flags, outer.session, address, port).map(Some);
            }
        }
        Ok(None)
    }
}

/// The verb in upper case (`v` for VF, `?` for an unknown one), and the text after it.
fn split_verb(word: &[u8]) -> (char, &[u8]) {
    if word.eq_ignore_ascii_case(b"VF") {
        return ('v', &[]);
    }
    let letter = word[0].to_ascii_uppercase();
    if b"ULDQVIGXPSCRN".contains(&letter) {
        (char::from(letter), &word[1..])
    } else {
        ('?', &[])
    }
}

fn split_subcommands(raw: &[u8], first: usize) -> Result<Vec<&[u8]>, ParseError> {
    let marks = Words::new(&raw[first..])
        .filter(|(_, word)| *word == b"&&")
        .map(|(at, _)| first + at);
    let mut parts = Vec::new();
    let mut marks = marks.peekable();
    while let Some(mark) = marks.next() {
        let start = mark + 2;
        let part = trim(&raw[start..marks.peek().copied().unwrap_or(raw.len())]);
        if part.is_empty() {
            return Err(ParseError::new(Fault::NothingAfterAmpersands, start));
        }
        parts.push(part);
    }
    Ok(parts)
}

impl<'a> Parts<'a> {
    fn read(&self, modifiers: &'a [u8], at: usize) -> Result<(Request<'a>, Vec<&'a [u8]>), ParseError> {
        Ok(match self.verb {
            'U' | 'L' => {
                let flags = MediaFlags::parse(modifiers).map_err(|error| ParseError::new(error.fault, error.at + at))?;
                let (media, rest) = Media::parse(self.verb, flags, &self.args, self.end)?;
                let request = if self.verb == 'U' {
                    Request::Update(media)
                } else {
                    Request::Lookup(media)
                };
                (request, rest)
            }
            'D' => self.session(1).map(|(session, rest)| (Request::Delete(session), rest))?,
            'Q' => self.session(1).map(|(session, rest)| (Request::Query(session), rest))?,
            'S' => self.stream(StreamVerb::StopPlaying, 1)?,
            'R' => self.stream(StreamVerb::Record, 1)?,
            'N' => self.stream(StreamVerb::StopRecording, 1)?,
            'C' => self.stream(StreamVerb::Copy, 2)?,
            'P' => self.stream(StreamVerb::Play, 3)?,
            'V' => (Request::Version, self.rest(0)),
            'v' if self.args.is_empty() => return Err(ParseError::new(Fault::Missing('V', "date"), self.end)),
            'v' => (Request::Capability, self.rest(0)),
            'I' => (Request::Info, self.rest(0)),
            'G' => (Request::Statistics, self.rest(0)),
            'X' => (Request::DeleteAll, self.rest(0)),
            _ => (Request::Unknown, self.rest(0)),
        })
    }

    fn rest(&self, from: usize) -> Vec<&'a [u8]> {
        self.args.iter().skip(from).map(|(_, word)| *word).collect()
    }

    fn stream(&self, verb: StreamVerb, tag: usize) -> Result<(Request<'a>, Vec<&'a [u8]>), ParseError> {
        self.session(tag).map(|(session, rest)| (Request::Stream(verb, session), rest))
    }

    /// The session of `VERB callid … from [to] …`, whose argument number `tag` is the from-tag; and all other arguments.
    fn session(&self, tag: usize) -> Result<(Session<'a>, Vec<&'a [u8]>), ParseError> {
        let names: &[&'static str] = match tag {
            1 => &["call-id", "from-tag"],
            2 => &["call-id", "target", "from-tag"],
            _ => &["call-id", "file name", "codecs", "from-tag"],
        };
        if let Some(missing) = names.get(self.args.len()) {
            return Err(ParseError::new(Fault::Missing(self.verb, missing), self.end));
        }
        let (call_id, from) = (self.args[0].1, Tag::parse(self.args[tag].1));
        let to = self.args.get(tag + 1).map(|(_, word)| Tag::parse(word));
        let between = self.args[1..tag].iter().map(|(_, word)| *word);
        Ok((Session { call_id, from, to }, between.chain(self.rest(tag + 2)).collect()))
    }
}
