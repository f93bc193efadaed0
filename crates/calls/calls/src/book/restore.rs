//! Converts lines to rows of the journal, and back.

use super::Book;
use crate::entry::{Counters, RelayEntry};
use crate::hold::{Held, Holds, recorders};
use crate::ids::{COMPONENTS, LineId, RelayId, Side, State, StreamId};
use crate::journal::{
    BranchRow, EntryRow, FORMAT, HoldRow, LearnedRow, LegRow, NameRow, NotificationRow, RestoreError, Row, RowKey, StreamRow, Text,
    component, is_rtcp,
};
use crate::leg::{Leg, next_port};
use crate::line::{Branch, Line, Notification};
use crate::plan::plan;
use crate::reason::Reason;
use shunt_latch::{Component, Latch, Name, Names, Time};
use shunt_net::FiveTuple;
use shunt_rtp::Source;
use std::sync::Arc;
use std::time::Duration;

/// Converts a time of this process to Unix time in ms. `wall`: the Unix time of `now`.
fn unix_ms(at: Time, now: Time, wall: Duration) -> u64 {
    u64::try_from(wall.saturating_sub(now.since(at)).as_millis()).unwrap_or(u64::MAX)
}

fn from_unix_ms(ms: u64, now: Time, wall: Duration) -> Time {
    super::learn::ago(now, wall.saturating_sub(Duration::from_millis(ms)))
}

/// Converts a future time to Unix time in ms.
fn unix_ms_ahead(at: Time, now: Time, wall: Duration) -> u64 {
    u64::try_from((wall + at.since(now)).as_millis()).unwrap_or(u64::MAX)
}

fn from_unix_ms_ahead(ms: u64, now: Time, wall: Duration) -> Time {
    now + Duration::from_millis(ms).saturating_sub(wall)
}

fn hold_rows(line: &Line, now: Time, wall: Duration) -> Vec<HoldRow> {
    let row = |held: &Held| HoldRow {
        hold: held.hold.clone(),
        until_ms: held.until.map(|at| unix_ms_ahead(at, now, wall)),
    };
    line.holds.iter().map(row).collect()
}

fn text(bytes: &[u8]) -> Text {
    bytes.into()
}

fn learned(latch: &Latch) -> Option<LearnedRow> {
    let former = latch.former()?;
    Some(LearnedRow {
        source: former.source,
        ssrc: former.media.map(|media| media.ssrc),
        sequence: former.media.map(|media| media.sequence),
    })
}

fn leg_row(leg: &Leg) -> LegRow {
    let names = leg.rtp.names().iter().map(|name| NameRow {
        addr: name.addr,
        port: name.port,
    });
    LegRow {
        signalled: leg.signalled,
        relay: leg.relay,
        modifiers: text(&leg.modifiers),
        keepalive: text(&leg.keepalive),
        asymmetric: leg.asymmetric,
        muxes: leg.muxes,
        signalled_rtcp: leg.signalled_rtcp,
        names: names.collect(),
        rtp: learned(&leg.rtp),
        rtcp: learned(&leg.rtcp),
        payload_types: leg.payload_types.clone(),
        mismatches: leg.mismatches,
        sdp: leg.sdp.as_ref().map(Into::into),
    }
}

impl Book {
    /// Returns the row of a line; `None` for a line that has ended. `wall`: the Unix time of `now`.
    #[must_use]
    pub fn row(&self, id: LineId, now: Time, wall: Duration) -> Option<Row> {
        let line = self.lines.get(&id).filter(|line| line.released.is_none())?;
        let streams = line.stream_ids().filter_map(|stream| self.stream_row(line, stream));
        Some(Row {
            format: FORMAT,
            key: RowKey::of(line),
            relay: self.relay(line.relay)?.name.clone(),
            created_ms: unix_ms(line.created, now, wall),
            branches: line
                .branches
                .iter()
                .map(|branch| BranchRow {
                    tag: text(&branch.tag),
                    signalled: branch.signalled,
                    modifiers: text(&branch.modifiers),
                    via: text(&branch.via),
                    confirmed: branch.confirmed,
                })
                .collect(),
            notification: line.notification.as_ref().map(|notification| NotificationRow {
                socket: text(&notification.socket),
                tag: text(&notification.tag),
                peer: notification.peer,
            }),
            holds: hold_rows(line, now, wall),
            recorded: line.holds.past().to_vec(),
            described: line.described,
            subscribers: line.subscribers.iter().cloned().collect(),
            weak: line.weak[Side::Caller.index()],
            weak_callee: line.weak[Side::Callee.index()],
            strong: line.strong,
            kept_alive_ms: line.kept_alive_at.map(|at| unix_ms(at, now, wall)),
            ttl_raised: line.ttl_raised,
            ttl: line.ttl,
            caller: leg_row(line.leg(Side::Caller)),
            callee: leg_row(line.leg(Side::Callee)),
            streams: streams.collect(),
        })
    }

    fn stream_row(&self, line: &Line, id: StreamId) -> Option<StreamRow> {
        let stream = line.stream(id.sender, id.component);
        let port = line.leg(id.sender).relay_port(id.component);
        let entry = port.and_then(|port| self.table.present(id, port));
        (entry.is_some() || stream.was_offloaded).then(|| StreamRow {
            sender: id.sender,
            rtcp: is_rtcp(id.component),
            packets: stream.past().packets,
            bytes: stream.past().bytes,
            lost: stream.past().lost,
            reordered: stream.past().reordered,
            duplicates: stream.past().duplicates,
            jitter_us: stream.past().jitter_us,
            jitter_max_us: stream.past().jitter_max_us,
            offloaded_after_us: stream
                .offloaded_after()
                .map(|after| u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
            entry: entry.map(|entry| EntryRow {
                source: entry.key().src,
                port: entry.port(),
                new_source: entry.new_source(),
                new_destination: entry.new_destination(),
            }),
        })
    }

    /// Restores a line from the journal. Its entries count as present until [`Book::begin_compare`] verifies them.
    ///
    /// # Errors
    /// The row cannot be used; the book is unchanged.
    pub fn restore(&mut self, now: Time, wall: Duration, row: &Row) -> Result<LineId, RestoreError> {
        if row.format != FORMAT {
            return Err(RestoreError::Format(row.format));
        }
        let relay = self.relays.iter().position(|relay| relay.name == row.relay);
        let relay = RelayId(relay.ok_or_else(|| RestoreError::Relay(row.relay.clone()))?);
        let RowKey { call_id, tag, media } = &row.key;
        if self.calls.get(&*call_id.0).is_some_and(|call| call.line(&tag.0, *media).is_some()) {
            return Err(RestoreError::Present);
        }
        for relay in [&row.caller, &row.callee].into_iter().filter_map(|leg| leg.relay) {
            let ports = [Some(relay), next_port(relay)];
            if let Some(held) = ports.into_iter().flatten().find(|port| self.table.stream_at(*port).is_some()) {
                return Err(RestoreError::PortHeld(held));
            }
        }
        self.last_line += 1;
        let id = LineId(self.last_line);
        let tag: Arc<[u8]> = tag.0.as_slice().into();
        let created = from_unix_ms(row.created_ms, now, wall);
        let call = self.enter(&call_id.0, Arc::clone(&tag), *media, id, created);
        let mut line = Line::new(id, call, tag, *media, relay, created);
        // Packets that arrived while no agent ran are unknown, so the time-out begins anew.
        line.last_activity = now;
        line.branches = row.branches.iter().map(|row| self.branch(row)).collect();
        line.notification = row.notification.as_ref().map(|notification| {
            Box::new(Notification {
                socket: notification.socket.0.as_slice().into(),
                tag: notification.tag.0.as_slice().into(),
                peer: notification.peer,
            })
        });
        let until = |row: &HoldRow| row.until_ms.map(|ms| from_unix_ms_ahead(ms, now, wall));
        let held = row.holds.iter().map(|row| (row.hold.clone(), until(row)));
        line.holds = Holds::restored(held, row.recorded.clone());
        line.described = row.described;
        line.subscribers = row.subscribers.iter().cloned().collect();
        (line.strong, line.weak) = (row.strong, [row.weak, row.weak_callee]);
        (line.ttl_raised, line.ttl) = (row.ttl_raised, row.ttl);
        line.kept_alive_at = row.kept_alive_ms.map(|ms| from_unix_ms(ms, now, wall));
        line.stored = true;
        line.inherited = true;
        for (side, leg) in [(Side::Caller, &row.caller), (Side::Callee, &row.callee)] {
            self.restore_leg(&mut line, side, leg, now);
        }
        for stream in &row.streams {
            self.restore_stream(&mut line, stream);
        }
        self.restore_states(&mut line, now);
        self.set_timer(&mut line, now);
        line.counted_recorders = recorders(&line.all_holds());
        self.count_line(&line, true);
        self.lines.insert(line);
        Ok(id)
    }

    /// Sets the states that follow from the row, without reporting them as changes.
    fn restore_states(&self, line: &mut Line, now: Time) {
        for id in line.stream_ids() {
            let wanted = plan(line, id, now, &self.settings, &self.learner.policy, self.held(line, id).port);
            let is_in = wanted.entry.is_none_or(|entry| self.table.present(id, entry.port()) == Some(entry));
            let stream = line.stream_mut(id.sender, id.component);
            (stream.state, stream.reason) = if is_in {
                (wanted.state, wanted.reason)
            } else {
                (State::Learning, Reason::Installing)
            };
        }
    }

    fn branch(&mut self, row: &BranchRow) -> Branch {
        Branch {
            tag: row.tag.0.as_slice().into(),
            signalled: row.signalled,
            modifiers: self.modifiers.shared(row.modifiers.0.as_slice()),
            via: row.via.0.as_slice().into(),
            confirmed: row.confirmed,
        }
    }

    fn restore_leg(&mut self, line: &mut Line, side: Side, row: &LegRow, now: Time) {
        let names: Names = row
            .names
            .iter()
            .map(|name| Name {
                addr: name.addr,
                port: name.port,
            })
            .collect();
        let rtcp_names: Names = names
            .iter()
            .map(|name| Name {
                addr: name.addr,
                port: name.port.and_then(|port| port.checked_add(1)),
            })
            .collect();
        let addresses: Vec<_> = names.iter().map(|name| name.addr).collect();
        let leg = line.leg_mut(side);
        leg.signalled = row.signalled;
        leg.signalled_rtcp = row.signalled_rtcp;
        leg.relay = row.relay;
        leg.modifiers = self.modifiers.shared(row.modifiers.0.as_slice());
        leg.keepalive = self.modifiers.shared(row.keepalive.0.as_slice());
        (leg.asymmetric, leg.muxes, leg.placed_at) = (row.asymmetric, row.muxes, now);
        leg.payload_types.clone_from(&row.payload_types);
        leg.mismatches = row.mismatches;
        leg.sdp = row.sdp.as_ref().map(|sdp| sdp.sdp(&mut self.sdp_kinds));
        leg.rtp.set_asymmetric(row.asymmetric);
        leg.rtcp.set_asymmetric(row.asymmetric);
        leg.rtp.signal(now, names);
        leg.rtcp.signal(now, rtcp_names);
        let mut learned = Vec::new();
        for (component, row) in [(Component::Rtp, &row.rtp), (Component::Rtcp, &row.rtcp)] {
            let Some(row) = row else { continue };
            let media = row.ssrc.zip(row.sequence).map(|(ssrc, sequence)| Source { ssrc, sequence });
            leg.latch_mut(component).adopt(now, row.source, media);
            learned.push(row.source.addr);
            if component == Component::Rtp {
                leg.latched_at = Some(now);
            }
        }
        for addr in addresses.into_iter().chain(learned) {
            self.join(line, side, addr);
        }
        for component in COMPONENTS {
            if let Some(port) = line.leg(side).relay_port(component) {
                let id = StreamId {
                    line: line.id,
                    sender: side,
                    component,
                };
                self.table.assign(port, id);
            }
        }
    }

    fn restore_stream(&mut self, line: &mut Line, row: &StreamRow) {
        let id = StreamId {
            line: line.id,
            sender: row.sender,
            component: component(row.rtcp),
        };
        let stream = line.stream_mut(id.sender, id.component);
        stream.was_offloaded = true;
        if row.packets > 0 {
            stream.set_past(Counters {
                packets: row.packets,
                bytes: row.bytes,
                lost: row.lost,
                reordered: row.reordered,
                duplicates: row.duplicates,
                jitter_us: row.jitter_us,
                jitter_max_us: row.jitter_max_us,
            });
        }
        if let Some(after) = row.offloaded_after_us {
            stream.set_offloaded_after(Duration::from_micros(after));
        }
        let Some(entry) = &row.entry else { return };
        let key = FiveTuple::new(entry.source, entry.port);
        let Ok(entry) = RelayEntry::new(key, entry.new_source, entry.new_destination) else {
            return;
        };
        let port = line.leg(id.sender).relay_port(id.component);
        if port != Some(entry.port()) {
            return;
        }
        if line.leg(id.sender).asymmetric {
            line.leg_mut(id.sender).note_source(id.component, entry.key().src);
        }
        if self.table.adopt(id, entry) {
            self.orphans.remove(&entry.port());
        }
    }
}
