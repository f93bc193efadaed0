//! The request of a sub-command, the text after a `&&`.

use crate::command::{Command, Session};
use crate::media::Media;
use crate::tag::Tag;
use crate::words::{Words, number};

/// Digits of a time-out; rtpproxy reads an int.
const TTL_DIGITS: usize = 10;

/// A sub-command of U, L or Q.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subcommand<'a> {
    /// L: the answer, with the Call-ID and the tags of the U.
    Lookup(Box<Media<'a>>),
    /// D, or Dw for the weak claim: ends the session.
    Delete { weak: bool },
    /// S ttl=, or T of older versions: the session's new time-out, s.
    Ttl(u32),
    /// C: copies the packets of another session into this one.
    Copy(Session<'a>),
    /// M: a module of the relay inspects the packets.
    Module,
    /// Another or a malformed one.
    Other,
}

impl<'a> Command<'a> {
    /// The requests of the sub-commands, in order.
    pub fn steps(&self) -> impl Iterator<Item = Subcommand<'a>> + '_ {
        self.subcommands.iter().map(|raw| self.step(raw))
    }

    fn step(&self, raw: &'a [u8]) -> Subcommand<'a> {
        let mut words = Words::new(raw);
        let Some((_, head)) = words.next() else { return Subcommand::Other };
        let (letter, modifiers) = (head[0].to_ascii_uppercase(), &head[1..]);
        let mut word = || words.next().map(|(_, word)| word);
        let step = match letter {
            b'L' => self.sub_lookup().ok().flatten().map(Box::new).map(Subcommand::Lookup),
            b'D' => (modifiers.is_empty() || modifiers.eq_ignore_ascii_case(b"w")).then_some(Subcommand::Delete {
                weak: !modifiers.is_empty(),
            }),
            b'S' => word().and_then(|value| ttl(value.strip_prefix(b"ttl=")?)),
            b'T' => ttl(modifiers),
            b'C' => word().zip(word()).map(|(call_id, from)| {
                let (from, to) = (Tag::parse(from), word().map(Tag::parse));
                Subcommand::Copy(Session { call_id, from, to })
            }),
            b'M' => Some(Subcommand::Module),
            _ => None,
        };
        step.unwrap_or(Subcommand::Other)
    }
}

fn ttl<'a>(digits: &[u8]) -> Option<Subcommand<'a>> {
    let ttl = u32::try_from(number(digits, TTL_DIGITS)?).ok()?;
    (ttl > 0).then_some(Subcommand::Ttl(ttl))
}
