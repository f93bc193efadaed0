//! What a sub-command asks for: what follows a `&&`.

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
    /// D, or Dw for the weak claim: the session ends.
    Delete { weak: bool },
    /// S ttl=, or T of older versions: the session's time-out from now on, s.
    Ttl(u32),
    /// C: the packets of another session are sent into this one too.
    Copy(Session<'a>),
    /// M: a module of the relay looks at the packets.
    Module,
    /// Another one, or one that cannot be read.
    Other,
}

impl<'a> Command<'a> {
    /// What the sub-commands ask for, in their order.
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
