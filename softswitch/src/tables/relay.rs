//! `relay` and `relay6`: 5-tuples and the destinations of their packets.

use super::{Change, Each, Position, Row, Table, Undo, address, flow, flow_fields, port};
use crate::plane::Plane;
use crate::plane::ports::Program;
use shunt_bfrt::schema::{self, Action, SchemaError};
use shunt_bfrt::values::{COUNTER_BYTES, COUNTER_PKTS, Data, ENTRY_HIT_STATE, ENTRY_TTL, Key, stream, text};
use shunt_bfrt::{BfrtError, Code, pb};
use shunt_net::{Endpoint, FiveTuple, octets};
use shunt_relay_table::{Cursor, Fault, RelayEntry, StreamStats};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

const IDLE: &str = "ENTRY_IDLE";
const ACTIVE: &str = "ENTRY_ACTIVE";
/// Entries whose state is saved in one step.
const UNDOS: usize = 256;

/// The relay table of one IP version.
pub struct Relay {
    schema: Arc<schema::Table>,
    v6: bool,
    program: Program,
    to: u32,
    to_from: u32,
    /// To the other IP version.
    cross: u32,
}

fn entry_of(key: FiveTuple, ttl_ms: u32, src: (IpAddr, u16), dst: (IpAddr, u16), dscp: Option<u8>) -> RelayEntry {
    RelayEntry {
        key,
        src: Endpoint::new(src.0, src.1),
        dst: Endpoint::new(dst.0, dst.1),
        ttl_ms,
        dscp,
    }
}

impl Relay {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>, v6: bool, program: Program) -> Result<Self, SchemaError> {
        let six = if v6 { "6" } else { "" };
        let action = |name: String, sizes: &[usize]| -> Result<u32, SchemaError> {
            let action = schema.actions.named(&name)?;
            let found: Vec<(u32, Option<usize>)> = action.fields.iter().map(|field| (field.id, field.size())).collect();
            let wanted: Vec<(u32, Option<usize>)> = (1..).zip(sizes.iter().map(|size| Some(*size))).collect();
            if found == wanted {
                Ok(action.id)
            } else {
                Err(SchemaError(format!("{name} has other parameters than {sizes:?} bytes")))
            }
        };
        let (own, other) = if v6 { (16, 4) } else { (4, 16) };
        let made = Self {
            v6,
            program,
            to: action(format!("relay{six}_to"), &[own, 2, 2])?,
            to_from: action(format!("relay{six}_to_from"), &[own, own, 2, 2, 1, 1])?,
            cross: action(
                if v6 { "relay6_to_v4".into() } else { "relay_to_v6".into() },
                &[other, other, 2, 2, 1, 1],
            )?,
            schema: Arc::clone(&schema),
        };
        Ok(made)
    }

    /// Returns the entry of checked data; missing parameters are zero.
    fn entry(&self, key: FiveTuple, action: &Action, data: &Data<'_>, ttl_ms: u32) -> RelayEntry {
        let wide = (action.id == self.cross) != self.v6;
        let zero: &[u8] = if wide { &[0; 16] } else { &[0; 4] };
        let addr = |id| address(data.bytes(id).unwrap_or(zero));
        let number = |id| port(data.bytes(id).unwrap_or(&[]));
        if action.id == self.to {
            return entry_of(key, ttl_ms, (key.dst.addr, number(3)), (addr(1), number(2)), None);
        }
        let dscp = (data.number(5) != 0).then(|| data.number(6) as u8);
        entry_of(key, ttl_ms, (addr(1), number(3)), (addr(2), number(4)), dscp)
    }

    /// Returns the action of an entry.
    fn action_of(&self, plane: &Plane, entry: &RelayEntry) -> u32 {
        if entry.dst.addr.is_ipv6() != self.v6 {
            self.cross
        } else if entry.dscp.is_some() || entry.src.addr != entry.key.dst.addr || plane.notes.explicit.contains(&entry.key) {
            self.to_from
        } else {
            self.to
        }
    }

    fn checked<'a>(&self, data: &Data<'a>) -> Result<Option<&'a Action>, BfrtError> {
        let name = &self.schema.name;
        if let Some(action) = data.action
            && action.default_only
        {
            return Err(BfrtError::new(
                Code::Invalid,
                format!("{} is for the default entry only; table:{name}", action.name),
            ));
        }
        for counter in [COUNTER_PKTS, COUNTER_BYTES] {
            if data.number(counter) != 0 {
                return Err(BfrtError::new(
                    Code::Unsupported,
                    format!("Counters can be set to zero only; table:{name}"),
                ));
            }
        }
        Ok(data.action)
    }

    /// Returns the time to live in data, if any.
    fn ttl(&self, plane: &Plane, data: &Data<'_>) -> Result<Option<u32>, BfrtError> {
        let Some(bytes) = data.bytes(ENTRY_TTL) else { return Ok(None) };
        let ttl = shunt_bfrt::values::number(bytes) as u32;
        let idle = &plane.notes.idle[self.program][usize::from(self.v6)];
        if ttl != 0 && idle.enable && idle.notify && ttl < idle.interval {
            let text = format!(
                "$ENTRY_TTL {ttl} is less than the query interval {}; table:{}",
                idle.interval, self.schema.name
            );
            return Err(BfrtError::new(Code::Invalid, text));
        }
        Ok(Some(ttl))
    }

    fn no_action(&self, change: Change) -> BfrtError {
        BfrtError::new(
            Code::Invalid,
            format!("{}: no action given; table:{}", change.failed(), self.schema.name),
        )
    }

    /// Returns whether the programs may send the packets of an entry.
    fn permitted(&self, plane: &mut Plane, change: Change, entry: &RelayEntry) -> Result<(), BfrtError> {
        let Some(why) = plane.denies(entry) else { return Ok(()) };
        let text = format!("{}: {why}; table:{}", change.failed(), self.schema.name);
        Err(BfrtError::new(Code::FailedPrecondition, text))
    }

    fn note_action(&self, plane: &mut Plane, action: &Action, entry: &RelayEntry) {
        let short = entry.dscp.is_none() && entry.src.addr == entry.key.dst.addr;
        if action.id == self.to_from && short {
            plane.notes.explicit.insert(entry.key);
        } else if !plane.notes.explicit.is_empty() {
            plane.notes.explicit.remove(&entry.key);
        }
    }

    fn row(&self, plane: &Plane, entry: &RelayEntry, stats: &StreamStats) -> Row {
        let action = self.action_of(plane, entry);
        let (src, dst) = (octets(entry.src.addr), octets(entry.dst.addr));
        let (sport, dport) = (entry.src.port.to_be_bytes(), entry.dst.port.to_be_bytes());
        let mut data = Vec::with_capacity(10);
        if action == self.to {
            data.extend([stream(1, &*dst), stream(2, dport), stream(3, sport)]);
        } else {
            data.extend([stream(1, &*src), stream(2, &*dst), stream(3, sport), stream(4, dport)]);
            data.extend([stream(5, [u8::from(entry.dscp.is_some())]), stream(6, [entry.dscp.unwrap_or(0)])]);
        }
        let ttl = u64::from(entry.ttl_ms);
        let left = ttl.saturating_sub(stats.idle_ms) as u32;
        data.push(stream(ENTRY_TTL, left.to_be_bytes()));
        data.push(text(ENTRY_HIT_STATE, if ttl != 0 && stats.idle_ms >= ttl { IDLE } else { ACTIVE }));
        data.push(stream(COUNTER_BYTES, stats.bytes.to_be_bytes()));
        data.push(stream(COUNTER_PKTS, stats.packets.to_be_bytes()));
        Row {
            key: flow_fields(&entry.key),
            action,
            data,
        }
    }

    /// Returns what restores the entry with this key, or its absence.
    fn undo_of(&self, plane: &Plane, key: &FiveTuple) -> Result<Undo, BfrtError> {
        let key = *key;
        let saved = plane.relay.save(&key).map_err(|fault| self.kernel(fault))?;
        let explicit = plane.notes.explicit.contains(&key);
        let name = self.schema.name.clone();
        Ok(Box::new(move |plane| {
            let result = match &saved {
                Some(saved) => plane.relay.restore(&mut plane.hops, saved),
                None => plane.relay.delete(&mut plane.hops, &key).map(drop),
            };
            if let Some(saved) = &saved
                && plane.denies(&saved.entry).is_some()
                && result.is_ok()
            {
                let held = plane.relay.set_held(&mut plane.hops, &saved.entry, true);
                held.map_err(|fault| BfrtError::new(Code::Internal, format!("{fault}; table:{name}")))?;
            }
            if saved.is_none() {
                plane.notes.forget(&key);
            } else if explicit {
                plane.notes.explicit.insert(key);
            } else {
                plane.notes.explicit.remove(&key);
            }
            result.map_err(|fault| BfrtError::new(Code::Internal, format!("{fault}; table:{name}")))
        }))
    }

    fn kernel(&self, fault: Fault) -> BfrtError {
        self.fault(Change::Modify, &fault)
    }
}

impl Table for Relay {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(plane.relay.get(&flow(key)).map_err(|fault| self.kernel(fault))?.is_some())
    }

    fn prepare(&self, plane: &mut Plane, new: &[(&Key<'_>, &Data<'_>)]) {
        if new.len() < 2 {
            return;
        }
        let mut pairs = Vec::new();
        for (key, data) in new {
            if let Some(action) = data.action {
                let entry = self.entry(flow(key), action, data, 0);
                pairs.push((entry.dst.addr, entry.src.addr));
            }
        }
        plane.hops.0.look_ahead(pairs);
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        let action = self.checked(data)?.ok_or_else(|| self.no_action(Change::Insert))?;
        let ttl = self.ttl(plane, data)?.unwrap_or(0);
        let entry = self.entry(flow(key), action, data, ttl);
        self.permitted(plane, Change::Insert, &entry)?;
        let tick = plane.tick();
        plane
            .relay
            .insert(&mut plane.hops, &entry, tick)
            .map_err(|fault| self.fault(Change::Insert, &fault))?;
        self.note_action(plane, action, &entry);
        Ok(())
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, reset: bool) -> Result<(), BfrtError> {
        let action = self.checked(data)?;
        if action.is_none() && data.fields.is_empty() {
            return Err(self.no_action(Change::Modify));
        }
        let key = flow(key);
        let failed = |fault| self.fault(Change::Modify, &fault);
        let ttl = self.ttl(plane, data)?;
        let current = plane.relay.get(&key).map_err(failed)?.ok_or_else(|| failed(Fault::Absent))?;
        let ttl = ttl.unwrap_or(current.ttl_ms);
        let entry = match action {
            Some(action) => self.entry(key, action, data, ttl),
            // Only the table's own fields: the entry keeps its action.
            None => RelayEntry { ttl_ms: ttl, ..current },
        };
        let denied = self.permitted(plane, Change::Modify, &entry);
        if action.is_some() {
            denied.clone()?;
        }
        plane.relay.modify(&mut plane.hops, &entry).map_err(failed)?;
        if denied.is_err() {
            plane.relay.set_held(&mut plane.hops, &entry, true).map_err(failed)?;
        }
        if let Some(action) = action {
            self.note_action(plane, action, &entry);
        }
        if reset || data.has(COUNTER_PKTS) || data.has(COUNTER_BYTES) {
            plane.relay.reset_stats(&key).map_err(failed)?;
        }
        plane.notes.active(&key);
        Ok(())
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        let key = flow(key);
        let failed = |fault| self.fault(Change::Delete, &fault);
        if !plane.relay.delete(&mut plane.hops, &key).map_err(failed)? {
            return Err(failed(Fault::Absent));
        }
        plane.notes.forget(&key);
        Ok(())
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        let cursor = at.get_or_insert_with(|| Box::new(Cursor::default())).downcast_mut::<Cursor>();
        let Some(cursor) = cursor else { return Ok(true) };
        let mut gone = Vec::new();
        let result = plane.relay.clear(&mut plane.hops, cursor, self.v6, |key| gone.push(*key), more);
        for key in gone {
            plane.notes.forget(&key);
        }
        result.map_err(|fault| self.fault(Change::Delete, &fault))
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        self.undo_of(plane, &flow(key))
    }

    fn undo_some(&self, plane: &Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<(Vec<Undo>, bool), BfrtError> {
        let cursor = at.get_or_insert_with(|| Box::new(Cursor::default())).downcast_mut::<Cursor>();
        let Some(cursor) = cursor else { return Ok((Vec::new(), true)) };
        let clock = plane.clock().map_err(|fault| self.kernel(fault))?;
        let mut keys = Vec::new();
        let each = |entry: &RelayEntry, _: &StreamStats| {
            keys.push(entry.key);
            if keys.len() < UNDOS && more() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let ended = plane.relay.scan(cursor, self.v6, clock, each).map_err(|fault| self.kernel(fault))?;
        let undos: Result<Vec<Undo>, BfrtError> = keys.iter().map(|key| self.undo_of(plane, key)).collect();
        Ok((undos?, ended))
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        self.read_flow(plane, &flow(key))
    }

    fn read_flow(&self, plane: &Plane, key: &FiveTuple) -> Result<Row, BfrtError> {
        let found = plane.clock().and_then(|clock| plane.relay.stats(key, clock));
        let (entry, stats) = found.map_err(|fault| self.kernel(fault))?.ok_or_else(|| self.absent())?;
        Ok(self.row(plane, &entry, &stats))
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        let cursor = at.get_or_insert_with(|| Box::new(Cursor::default())).downcast_mut::<Cursor>();
        let Some(cursor) = cursor else { return Ok(true) };
        let clock = plane.clock().map_err(|fault| self.kernel(fault))?;
        let one = |entry: &RelayEntry, stats: &StreamStats| each(self.row(plane, entry, stats));
        plane.relay.scan(cursor, self.v6, clock, one).map_err(|fault| self.kernel(fault))
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(plane.relay.count(self.v6))
    }

    fn has_default(&self) -> bool {
        true
    }

    fn handle_key(&self, key: &Key<'_>) -> Option<FiveTuple> {
        Some(flow(key))
    }

    fn idle(&self) -> Option<usize> {
        Some(usize::from(self.v6))
    }

    fn flow_key(&self, flow: &FiveTuple) -> Vec<pb::KeyField> {
        flow_fields(flow)
    }
}
