//! Q, I and G.

use super::{Counts, Engine, Media, Refusal};
use crate::session::{Session, SessionId, TO_CALLEE};
use shunt_latch::Time;
use shunt_rtpproxy::{Command, DEFAULT_COUNTERS, ErrorCode, Info};
use std::time::Duration;

/// Over how long rates are measured at least.
const MEASURED: Duration = Duration::from_secs(1);

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) commands: u64,
    pub(super) duplicates: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) created: u64,
    pub(super) timeouts: u64,
    destroyed: u64,
    complete: u64,
    no_rtp: u64,
    one_way_rtp: u64,
    no_rtcp: u64,
    one_way_rtcp: u64,
    duration: Duration,
}

impl Ended {
    /// A session has ended.
    pub(super) fn add(&mut self, now: Time, session: &Session, counts: &Counts) {
        self.destroyed += 1;
        self.complete += u64::from(session.complete);
        self.duration += now.since(session.born);
        match u8::from(counts.from_callee > 0) + u8::from(counts.from_caller > 0) {
            0 => self.no_rtp += 1,
            1 => self.one_way_rtp += 1,
            _ => {}
        }
        match u8::from(counts.rtcp_from_callee > 0) + u8::from(counts.rtcp_from_caller > 0) {
            0 => self.no_rtcp += 1,
            1 => self.one_way_rtcp += 1,
            _ => {}
        }
    }
}

/// Packets per second between two questions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketRate {
    asked: Time,
    packets: u64,
    rate: f64,
}

impl PacketRate {
    fn now(&mut self, now: Time, packets: u64) -> f64 {
        let elapsed = now.since(self.asked);
        if elapsed >= MEASURED {
            // Packets of a second are far from 2^52.
            #[allow(clippy::cast_precision_loss)]
            let more = packets.saturating_sub(self.packets) as f64;
            *self = Self {
                asked: now,
                packets,
                rate: more / elapsed.as_secs_f64(),
            };
        }
        self.rate
    }
}

/// A counter's value, as it is written.
enum Value {
    Whole(u64),
    Fraction(f64),
}

/// `values` by their names, in the form that the modifiers ask for.
fn write(names: &[&[u8]], verbose: bool, unknown: ErrorCode, value: impl Fn(&[u8]) -> Option<Value>) -> Result<Vec<u8>, Refusal> {
    let mut words = Vec::with_capacity(names.len());
    for name in names {
        let text = match value(name).ok_or(unknown)? {
            Value::Whole(value) => value.to_string(),
            Value::Fraction(value) => format!("{value:.6}"),
        };
        words.push(if verbose { format!("{}={text}", name.escape_ascii()) } else { text });
    }
    Ok(words.join(" ").into_bytes())
}

/// Whether all modifiers are among the letters.
fn only(command: &Command, letters: &[u8]) -> bool {
    command.modifiers.iter().all(|byte| letters.contains(&byte.to_ascii_uppercase()))
}

impl<M: Media> Engine<M> {
    pub(super) fn query(&mut self, now: Time, command: &Command, found: Option<(SessionId, usize)>) -> Result<Vec<u8>, Refusal> {
        let steps = self.read_steps(command)?;
        let (id, leg) = found.ok_or(ErrorCode::SESSION_NOT_FOUND)?;
        if !only(command, b"V") {
            return Err(ErrorCode::BAD_QUERY_MODIFIER.into());
        }
        let counts = self.media.counts(id);
        let (first, other) = match leg {
            TO_CALLEE => (counts.from_caller, counts.from_callee),
            _ => (counts.from_callee, counts.from_caller),
        };
        let ttl = self
            .table
            .get(id)
            .map_or(0, |session| ceiling(session.due(self.media.last_packet(id)).since(now)));
        let value = |name: &[u8]| {
            Some(Value::Whole(match name {
                b"ttl" => ttl,
                b"npkts_ina" => first,
                b"npkts_ino" => other,
                b"nrelayed" => counts.relayed,
                b"ndropped" => counts.dropped,
                _ => return None,
            }))
        };
        let names: &[&[u8]] = if command.arguments.is_empty() {
            &DEFAULT_COUNTERS
        } else {
            &command.arguments
        };
        let mut reply = write(names, !command.modifiers.is_empty(), ErrorCode::UNKNOWN_QUERY_COUNTER, value)?;
        if !steps.is_empty() {
            reply.extend(self.run_steps(now, steps, id, 1 - leg));
            self.look_again(now, id);
        }
        Ok(reply)
    }

    pub(super) fn info(&mut self, now: Time, command: &Command) -> Result<Vec<u8>, Refusal> {
        if !only(command, b"BL") {
            return Err(ErrorCode::BAD_INFO_MODIFIER.into());
        }
        if !command.arguments.is_empty() {
            return Err(ErrorCode::ARGUMENT_COUNT.into());
        }
        let (totals, sessions) = (self.media.totals(), self.table.len() as u64);
        let info = Info {
            sessions_created: self.ended.created,
            active_sessions: sessions,
            active_streams: 2 * sessions,
            packets_received: totals.received,
            packets_transmitted: totals.relayed,
            average_load: command.has_modifier(b'L').then(|| self.media.load(now)),
        };
        Ok(info.to_string().into_bytes())
    }

    pub(super) fn statistics(&mut self, now: Time, command: &Command) -> Result<Vec<u8>, Refusal> {
        if !only(command, b"V") {
            return Err(ErrorCode::BAD_STATISTICS_MODIFIER.into());
        }
        let (totals, ended) = (self.media.totals(), self.ended);
        let rate = self.rate.now(now, totals.received);
        let complete = ended.complete + self.table.after(SessionId(0)).filter(|session| session.complete).count() as u64;
        let value = |name: &[u8]| {
            Some(Value::Whole(match name {
                b"nsess_created" => ended.created,
                b"nsess_destroyed" => ended.destroyed,
                b"nsess_timeout" => ended.timeouts,
                b"nsess_complete" => complete,
                b"nsess_nortp" => ended.no_rtp,
                b"nsess_owrtp" => ended.one_way_rtp,
                b"nsess_nortcp" => ended.no_rtcp,
                b"nsess_owrtcp" => ended.one_way_rtcp,
                b"npkts_rcvd" => totals.received,
                b"npkts_played" => 0,
                b"npkts_relayed" => totals.relayed,
                b"npkts_discard" => totals.discarded,
                b"total_duration" => return Some(Value::Fraction(ended.duration.as_secs_f64())),
                b"ncmds_rcvd" => ended.commands,
                b"ncmds_rcvd_ndups" => ended.duplicates,
                b"ncmds_succd" => ended.succeeded,
                b"ncmds_errs" => ended.failed,
                b"ncmds_repld" => ended.succeeded + ended.failed,
                b"pps_in" => return Some(Value::Fraction(rate)),
                _ => return None,
            }))
        };
        write(
            &command.arguments,
            !command.modifiers.is_empty(),
            ErrorCode::UNKNOWN_GLOBAL_COUNTER,
            value,
        )
    }
}

/// Whole seconds, rounded up.
pub(super) fn ceiling(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}
