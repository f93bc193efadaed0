//! The tables `relay` and `relay6`: converts entries to updates, and read entries back.

use crate::row::TableRow;
use crate::tuple::{FIELDS, Slot, TupleTable, address, fill_key, put_addr, put_port};
use crate::wire::Part;
use bytes::{Bytes, BytesMut};
use shunt_bfrt::pb::update::Type;
use shunt_bfrt::schema::{Action, Field, SchemaError, Table};
use shunt_bfrt::values::number;
use shunt_calls::{MediaRange, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use std::sync::Arc;
use std::time::Duration;

/// An action that sets the destination of packets.
#[derive(Clone, Debug)]
struct Rewrite {
    action_id: u32,
    /// IP version of the leaving packet.
    v6: bool,
    source: Option<u32>,
    destination: u32,
    source_port: u32,
    destination_port: u32,
    /// The fields of the DSCP: whether to set it, and its value.
    marks: Option<(u32, u32)>,
    parameters: usize,
    insert: Part<Slot>,
    modify: Part<Slot>,
}

/// `relay` or `relay6`.
#[derive(Clone, Debug)]
pub(crate) struct RelayTable {
    pub(crate) name: String,
    pub(crate) size: usize,
    pub(crate) tuple: TupleTable,
    /// Whether it reports idle entries.
    pub(crate) ages: bool,
    /// The data field with the remaining time until the entry is idle, in ms.
    pub(crate) ttl: Option<u32>,
    idle: Duration,
    /// DSCP by the range that packets leave from.
    marks: Arc<[(MediaRange, u8)]>,
    /// The data fields that count packets and bytes.
    pub(crate) counters: Option<(u32, u32)>,
    /// Actions, the shortest first.
    rewrites: Vec<Rewrite>,
    delete: Part<Slot>,
}

impl RelayTable {
    /// Resolves the table.
    ///
    /// # Errors
    /// The key is not a 5-tuple, or no action sets a destination.
    pub(crate) fn new(table: &Table, idle: Duration, tos: &[(MediaRange, u8)]) -> Result<Self, SchemaError> {
        let tuple = TupleTable::new(table)?;
        let ttl = table.data.find("$ENTRY_TTL");
        let mut rewrites = Vec::new();
        let mut reason = "there is none".to_owned();
        for action in table.actions.iter().filter(|action| !action.default_only) {
            match Rewrite::new(&tuple, action, ttl, idle) {
                Ok(rewrite) => rewrites.push(rewrite),
                // A target may have actions for other purposes.
                Err(SchemaError(text)) => reason = text,
            }
        }
        if rewrites.is_empty() {
            return Err(SchemaError(format!("{}: no action says where packets go: {reason}", table.name)));
        }
        rewrites.sort_by_key(|rewrite| rewrite.parameters);
        let counter = |name| table.data.find(name).map(|field: &Field| field.id);
        let ages = table.attributes.iter().any(|name| name == "IdleTimeout");
        Ok(Self {
            name: table.name.clone(),
            size: table.size,
            ages,
            ttl: ttl.filter(|_| ages).map(|field| field.id),
            idle,
            marks: tos.iter().map(|(range, tos)| (*range, tos >> 2)).collect(),
            counters: counter("$COUNTER_SPEC_PKTS").zip(counter("$COUNTER_SPEC_BYTES")),
            delete: tuple.update(Type::Delete.into(), None),
            rewrites,
            tuple,
        })
    }

    /// Encodes an INSERT or MODIFY; `None` if no action can express the entry.
    pub(crate) fn place(&self, arena: &mut BytesMut, entry: &RelayEntry, modify: bool) -> Option<Bytes> {
        let (key, source, destination) = (entry.key(), entry.new_source(), entry.new_destination());
        let v6 = destination.addr.is_ipv6();
        // Without a source address of its own, the entry uses the packet's old destination as the source.
        let fits = |rewrite: &&Rewrite| rewrite.v6 == v6 && (rewrite.source.is_some() || source.addr == key.dst.addr);
        let dscp = self.dscp(source);
        let marking = self
            .rewrites
            .iter()
            .filter(|rewrite| dscp.is_none() || rewrite.marks.is_some())
            .find(fits);
        let rewrite = marking.or_else(|| self.rewrites.iter().find(fits))?;
        let template = if modify { &rewrite.modify } else { &rewrite.insert };
        Some(template.fill(arena, |slot, hole| match slot {
            Slot::NewSourceAddress => put_addr(hole, source.addr),
            Slot::NewDestinationAddress => put_addr(hole, destination.addr),
            Slot::NewSourcePort => put_port(hole, source.port),
            Slot::NewDestinationPort => put_port(hole, destination.port),
            Slot::SetDscp => hole.fill(dscp.is_some().into()),
            Slot::Dscp => hole.fill(dscp.unwrap_or(0)),
            _ => fill_key(slot, hole, &key),
        }))
    }

    /// Returns the DSCP of packets that leave from a relay address and port; `None`: unchanged.
    fn dscp(&self, source: Endpoint) -> Option<u8> {
        self.marks.iter().find(|(range, _)| range.contains(source)).map(|(_, dscp)| *dscp)
    }

    /// Returns whether an entry has another DSCP than a write would set, because another configuration wrote it.
    pub(crate) fn is_marked_otherwise(&self, row: &TableRow<'_>, entry: &RelayEntry) -> bool {
        let Some(rewrite) = self.rewrites.iter().find(|rewrite| rewrite.action_id == row.action_id) else {
            return false;
        };
        let wanted = self.dscp(entry.new_source());
        match rewrite.marks {
            Some((sets, dscp)) => {
                let value = |id| row.data.number(id).unwrap_or(0);
                let set = (value(sets) != 0).then(|| value(dscp));
                set != wanted.map(u64::from)
            }
            None => wanted.is_some() && self.rewrites.iter().any(|other| other.v6 == rewrite.v6 && other.marks.is_some()),
        }
    }

    /// Encodes a DELETE.
    pub(crate) fn delete(&self, arena: &mut BytesMut, key: &FiveTuple) -> Bytes {
        self.delete.fill(arena, |slot, hole| fill_key(slot, hole, key))
    }

    /// Decodes an entry; `None` for one that the agent cannot have written.
    pub(crate) fn entry(&self, row: &TableRow<'_>) -> Option<RelayEntry> {
        let key = self.tuple.key_of(&row.key)?;
        let rewrite = self.rewrites.iter().find(|rewrite| rewrite.action_id == row.action_id)?;
        let port = |id| row.data.number(id).and_then(|port| u16::try_from(port).ok());
        let source = match rewrite.source {
            Some(id) => address(row.data.get(id)?)?,
            None => key.dst.addr,
        };
        let destination = address(row.data.get(rewrite.destination)?)?;
        let source = Endpoint::new(source, port(rewrite.source_port)?);
        RelayEntry::new(key, source, Endpoint::new(destination, port(rewrite.destination_port)?)).ok()
    }

    /// Decodes packets and bytes of an entry.
    pub(crate) fn counts(&self, row: &TableRow<'_>) -> Option<(u64, u64)> {
        let (packets, bytes) = self.counters?;
        Some((row.data.number(packets).unwrap_or(0), row.data.number(bytes).unwrap_or(0)))
    }

    /// Returns how long an entry has certainly matched no packet: the time-out of an idle entry, and zero for any other, because the chip
    /// counts in coarse steps. bf_switchd reads `$ENTRY_TTL` as the remaining time (pipe_mgr_idle.c, rmt_mat_ent_get_idle_ttl).
    pub(crate) fn idle(&self, row: &TableRow<'_>) -> Option<Duration> {
        let is_idle = row.data.number(self.ttl?)? == 0;
        Some(if is_idle { self.idle } else { Duration::ZERO })
    }

    /// Returns the missing functions, for operators.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let name = self.name.rsplit('.').next().unwrap_or(&self.name);
        let mut lacks = Vec::new();
        if !self.rewrites.iter().any(|rewrite| rewrite.source.is_some()) {
            lacks.push(format!(
                "{name} has no action with a source address: media between two relay addresses stays on the relay"
            ));
        }
        if !self.rewrites.iter().any(|rewrite| rewrite.v6 != self.tuple.v6) {
            lacks.push(format!(
                "{name} has no action towards the other IP version: such media stays on the relay"
            ));
        }
        if !self.ages {
            lacks.push(format!("{name} does not age: no media time-outs from the data plane"));
        }
        lacks
    }
}

impl Rewrite {
    fn new(tuple: &TupleTable, action: &Action, ttl: Option<&Field>, idle: Duration) -> Result<Self, SchemaError> {
        let size_of = |name: &str| action.fields.find(name).map(|field| (field.id, field.size()));
        let required = |name: &str| size_of(name).ok_or_else(|| SchemaError(format!("{} has no parameter {name}", action.name)));
        let (source, (destination, size)) = (size_of("src_addr"), required("dst_addr")?);
        let (source_port, destination_port) = (required("src_port")?, required("dst_port")?);
        let two = Some(2);
        if source.is_some_and(|(_, other)| other != size)
            || !matches!(size, Some(4 | 16))
            || (source_port.1, destination_port.1) != (two, two)
        {
            return Err(SchemaError(format!("{}'s parameters are no address and port", action.name)));
        }
        let mut data = Part::new().number(1, action.id.into());
        for field in &action.fields {
            let hole = FIELDS.into_iter().find(|(name, _)| field.name == *name);
            let size = field.size().unwrap_or(0);
            let value = Part::new().number(1, field.id.into());
            let value = match (hole, field.name.as_str()) {
                (Some((_, slot)), _) => value.hole(2, size, new(slot)),
                (None, "set_dscp") if size == 1 => value.hole(2, 1, Slot::SetDscp),
                (None, "dscp") if size == 1 => value.hole(2, 1, Slot::Dscp),
                (None, name) => {
                    return Err(SchemaError(format!(
                        "{} has a parameter {name} that the agent does not know",
                        action.name
                    )));
                }
            };
            data = data.message(2, &value);
        }
        if let Some(ttl) = ttl {
            let milliseconds = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
            data = data.message(2, &Part::new().number(1, ttl.id.into()).bytes(2, &milliseconds.to_be_bytes()));
        }
        Ok(Self {
            action_id: action.id,
            v6: size == Some(16),
            source: source.map(|(id, _)| id),
            destination,
            source_port: source_port.0,
            destination_port: destination_port.0,
            marks: size_of("set_dscp").zip(size_of("dscp")).map(|((sets, _), (dscp, _))| (sets, dscp)),
            parameters: action.fields.len(),
            insert: tuple.update(Type::Insert.into(), Some(&data)),
            modify: tuple.update(Type::Modify.into(), Some(&data)),
        })
    }
}

/// Finds the parameter of an action that has a key field's name.
fn new(slot: Slot) -> Slot {
    match slot {
        Slot::SourceAddress => Slot::NewSourceAddress,
        Slot::DestinationAddress => Slot::NewDestinationAddress,
        Slot::SourcePort => Slot::NewSourcePort,
        _ => Slot::NewDestinationPort,
    }
}

/// The counters and times of `softswitch.quality`.
#[derive(Clone, Debug)]
pub(crate) struct QualityTable {
    pub(crate) tuple: TupleTable,
    packets: u32,
    bytes: u32,
    idle_ms: u32,
    lost: u32,
    reordered: u32,
    duplicates: u32,
    jitter_us: u32,
    ssrc: u32,
}

impl QualityTable {
    /// Resolves the table.
    ///
    /// # Errors
    /// The schema's table lacks a field.
    pub(crate) fn new(table: &Table) -> Result<Self, SchemaError> {
        let id = |name| table.data.named(name).map(|field| field.id);
        Ok(Self {
            tuple: TupleTable::new(table)?,
            packets: id("packets")?,
            bytes: id("bytes")?,
            idle_ms: id("idle_ms")?,
            lost: id("lost")?,
            reordered: id("reordered")?,
            duplicates: id("duplicates")?,
            jitter_us: id("jitter_us")?,
            ssrc: id("ssrc")?,
        })
    }

    pub(crate) fn counters(&self, row: &TableRow<'_>) -> shunt_calls::Counters {
        let get = |id| row.data.get(id).map_or(0, number);
        // Without an RTP packet, losses and jitter are unknown.
        let rtp = [self.ssrc, self.lost, self.reordered, self.duplicates, self.jitter_us]
            .into_iter()
            .any(|id| get(id) != 0);
        shunt_calls::Counters {
            packets: get(self.packets),
            bytes: get(self.bytes),
            lost: rtp.then(|| get(self.lost)),
            reordered: rtp.then(|| get(self.reordered)),
            duplicates: rtp.then(|| get(self.duplicates)),
            jitter_us: rtp.then(|| u32::try_from(get(self.jitter_us)).unwrap_or(u32::MAX)),
            jitter_max_us: None,
        }
    }

    pub(crate) fn idle(&self, row: &TableRow<'_>) -> Option<Duration> {
        row.data.number(self.idle_ms).map(Duration::from_millis)
    }
}
