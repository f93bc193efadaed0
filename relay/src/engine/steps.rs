//! Sub-commands after `&&`.

use super::offer::{MOST_TTL, Offer};
use super::{Engine, Media, Refusal};
use crate::session::SessionId;
use shunt_latch::Time;
use shunt_rtpproxy::{Command, ErrorCode, Request};
use std::time::Duration;

/// One sub-command that was understood.
#[derive(Debug)]
pub(super) enum Step {
    Ttl(Duration),
    Tos {
        tos: u8,
        /// Of the other leg.
        reverse: bool,
    },
    Delete {
        weak: bool,
    },
    Lookup(Box<Offer>),
    /// DTMF catching and copying.
    Unsupported(String),
}

const FAILED: &[u8] = b"-1";

impl<M: Media> Engine<M> {
    /// Read what follows `&&`.
    pub(super) fn read_steps(&self, command: &Command) -> Result<Vec<Step>, Refusal> {
        let steps = command.subcommands.iter().map(|raw| self.read_step(command, raw));
        steps.collect::<Result<_, _>>().map_err(|()| ErrorCode::BAD_SUBCOMMAND.into())
    }

    fn read_step(&self, command: &Command, raw: &[u8]) -> Result<Step, ()> {
        let words: Vec<&[u8]> = raw.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let (head, rest) = words.split_first().ok_or(())?;
        let (letter, modifiers) = (head[0].to_ascii_uppercase(), &head[1..]);
        let on_media = matches!(command.request, Request::Update(_) | Request::Lookup(_));
        match (letter, rest) {
            (b'S', [value]) if modifiers.len() <= 1 => set(modifiers.eq_ignore_ascii_case(b"R"), value),
            (b'T', []) if on_media => ttl(modifiers).map(Step::Ttl),
            (b'D', []) if modifiers.is_empty() || modifiers.eq_ignore_ascii_case(b"W") => Ok(Step::Delete {
                weak: !modifiers.is_empty(),
            }),
            (b'L', [_, _]) if matches!(&command.request, Request::Update(media) if media.session.to.is_some()) => self.read_lookup(command),
            (b'C', _) if on_media => Ok(Step::Unsupported(head.escape_ascii().to_string())),
            (b'M', _) if on_media && is_module(modifiers) => Ok(Step::Unsupported(head.escape_ascii().to_string())),
            _ => Err(()),
        }
    }

    fn read_lookup(&self, command: &Command) -> Result<Step, ()> {
        let answer = command.sub_lookup().map_err(|_| ())?.ok_or(())?;
        self.judge(&answer).map(|offer| Step::Lookup(Box::new(offer))).map_err(|_| ())
    }

    /// Run sub-commands in their order; `party` is the leg that the command spoke of. Their part of the reply.
    ///
    /// Successes without words of their own are left out at the end of the reply; the first failure ends the rest.
    pub(super) fn run_steps(&mut self, now: Time, steps: Vec<Step>, id: SessionId, mut party: usize) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut silent = 0;
        for step in steps {
            let answer = self.run_step(now, step, id, &mut party);
            if answer.is_empty() {
                silent += 1;
                continue;
            }
            reply.extend(b" && 0".repeat(silent));
            reply.extend_from_slice(b" && ");
            reply.extend_from_slice(&answer);
            silent = 0;
            if answer == FAILED {
                break;
            }
        }
        reply
    }

    fn run_step(&mut self, now: Time, step: Step, id: SessionId, party: &mut usize) -> Vec<u8> {
        let Some(session) = self.table.get_mut(id) else {
            return FAILED.to_vec();
        };
        let done = match step {
            Step::Ttl(ttl) => {
                session.set_ttl(ttl, now);
                true
            }
            Step::Tos { tos, reverse } => self.media.set_tos(id, if reverse { 1 - *party } else { *party }, tos),
            Step::Delete { weak } => {
                let (call_id, tag) = (session.call_id.clone(), session.tag.clone());
                self.drop_sessions(now, &call_id, &tag, None, weak).matched()
            }
            Step::Lookup(offer) => {
                if self.renew(now, id, *party, &offer).is_ok() {
                    let reply = self.apply(now, id, *party, &offer);
                    *party = 1 - *party;
                    return reply.to_string().into_bytes();
                }
                false
            }
            Step::Unsupported(what) => {
                tracing::warn!("{}: sub-command {what} is not supported", session.call_id.escape_ascii());
                false
            }
        };
        if done { Vec::new() } else { FAILED.to_vec() }
    }
}

fn number(text: &[u8], most: u64) -> Result<u64, ()> {
    let plain = !text.is_empty() && text.len() <= 10 && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text)
        .ok()
        .filter(|_| plain)
        .and_then(|text| text.parse::<u64>().ok());
    number.filter(|number| (1..=most).contains(number)).ok_or(())
}

fn ttl(text: &[u8]) -> Result<Duration, ()> {
    number(text, MOST_TTL).map(Duration::from_secs)
}

/// `ttl=60`, `tos=184`.
fn set(reverse: bool, value: &[u8]) -> Result<Step, ()> {
    if let Some(text) = value.strip_prefix(b"ttl=") {
        return ttl(text).map(Step::Ttl);
    }
    let tos = number(value.strip_prefix(b"tos=").ok_or(())?, 255)?;
    Ok(Step::Tos {
        tos: u8::try_from(tos).map_err(|_| ())?,
        reverse,
    })
}

/// `3:1` of M3:1, a module of rtpproxy.
fn is_module(text: &[u8]) -> bool {
    let is_number = |part: &[u8]| (1..=9).contains(&part.len()) && part.iter().all(u8::is_ascii_digit);
    let mut parts = text.split(|&byte| byte == b':');
    parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number) && parts.next().is_none()
}
