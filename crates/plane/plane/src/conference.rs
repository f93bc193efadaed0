//! The tables of conferences (docs/replication.md): converts rows to updates, and read entries to rows.

use crate::error::PlaneError;
use crate::registers::Registers;
use crate::row::TableRow;
use crate::rows::{self, Change, Row, TableWrite, Value};
use crate::tables::Tables;
use crate::tuple::endpoint;
use bytes::{Bytes, BytesMut};
use shunt_bfrt::schema::{self, Schema, Table};
use shunt_bfrt_client::{Session, UpdateError};
use shunt_calls::{Counters, RelayEntry};
use shunt_conference::diff::Step;
use shunt_conference::rewriting::{LayerRow, Rewriting};
use shunt_conference::rows::{Copy, Counted, Data, Key, Stream};
use shunt_conference::tables::{Member, Node, Offer, Replicate};
use shunt_net::FiveTuple;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Rows per Write request. Small requests keep the session's liveness timer fed.
const WRITES_AT_ONCE: usize = 100;
/// Keys per Read request.
const AT_ONCE: usize = 1000;
/// Most repetitions of a write that the data plane postpones.
const ROUNDS: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Codes of google.rpc.Code.
const NOT_FOUND: i32 = 5;
const EXISTS: i32 = 6;

const NODES: [&str; 3] = ["$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"];
const PORTS: &str = "$DEV_PORT";
/// The key fields of `conference`, in our order.
const TUPLE: [&str; 5] = ["src_addr", "dst_addr", "src_port", "dst_port", "ssrc"];
const PAYLOAD_TYPES: &str = "payload_types";
const PACKETS: &str = "$COUNTER_SPEC_PKTS";
const OCTETS: &str = "$COUNTER_SPEC_BYTES";

/// The tables of conferences in one target.
#[derive(Clone, Debug)]
pub(crate) struct ConferenceTables {
    streams: [Option<Counting>; 2],
    reception: [Option<Reception>; 2],
    copy: Counting,
    layer: Option<Counting>,
    mgid: Arc<Table>,
    node: Arc<Table>,
    prune: Arc<Table>,
    registers: Registers,
    rewriting: Rewriting,
}

/// A table with counters on its rows, and the numbers of its key fields in our order.
#[derive(Clone, Debug)]
struct Counting {
    table: Arc<Table>,
    key: Vec<u32>,
    packets: Option<u32>,
    octets: Option<u32>,
}

impl Counting {
    fn new(table: &Arc<Table>, key: &[&str]) -> Option<Self> {
        let data = |name: &str| table.data.find(name).map(|field| field.id);
        Some(Self {
            key: key.iter().map(|name| Some(table.key.find(name)?.id)).collect::<Option<_>>()?,
            packets: data(PACKETS),
            octets: data(OCTETS),
            table: Arc::clone(table),
        })
    }

    /// Returns a key field by its position in our order.
    fn part<'a>(&self, row: &TableRow<'a>, at: usize) -> Option<&'a [u8]> {
        self.key.get(at).and_then(|id| row.key.get(*id))
    }

    /// Returns the key of a stream's row.
    fn stream(&self, row: &TableRow<'_>) -> Option<Key> {
        let end = |addr: usize, port: usize| endpoint(self.part(row, addr)?, self.part(row, port)?);
        let ssrc = shunt_bfrt::values::number(self.part(row, 4)?);
        Some(Key::Stream(FiveTuple::new(end(0, 2)?, end(1, 3)?), u32::try_from(ssrc).ok()?))
    }

    fn counted(&self, row: &TableRow<'_>, key: Key) -> Counted {
        let count = |field: Option<u32>| field.and_then(|id| row.data.number(id)).unwrap_or(0);
        Counted {
            key,
            packets: count(self.packets),
            octets: count(self.octets),
        }
    }
}

/// The table of a target that reports the reception of streams (RFC 3550), with the keys of `conference`.
#[derive(Clone, Debug)]
struct Reception {
    rows: Counting,
    packets: u32,
    octets: u32,
    /// Lost, reordered, duplicates, jitter in µs.
    quality: [u32; 4],
}

impl Reception {
    fn new(table: &Arc<Table>) -> Option<Self> {
        let data = |name: &str| table.data.find(name).map(|field| field.id);
        Some(Self {
            rows: Counting::new(table, &TUPLE)?,
            packets: data("packets")?,
            octets: data("bytes")?,
            quality: [data("lost")?, data("reordered")?, data("duplicates")?, data("jitter_us")?],
        })
    }

    fn counters(&self, row: &TableRow<'_>) -> Counters {
        let number = |id: u32| row.data.number(id);
        let [lost, reordered, duplicates, jitter] = self.quality.map(number);
        Counters {
            packets: number(self.packets).unwrap_or(0),
            bytes: number(self.octets).unwrap_or(0),
            lost,
            reordered,
            duplicates,
            jitter_us: jitter.map(|jitter| u32::try_from(jitter).unwrap_or(u32::MAX)),
            jitter_max_us: None,
        }
    }
}

impl ConferenceTables {
    /// Resolves the tables; `None` if the target has none of them.
    pub(crate) fn new(schema: &Schema) -> Option<Self> {
        let streams = ["conference", "conference6"].map(|name| Counting::new(schema.table(name)?, &TUPLE));
        let copy = Counting::new(schema.table("copy")?, &["stream", "rid"])?;
        let layer = schema
            .table("layer")
            .and_then(|table| Counting::new(table, &["layers", "template"]));
        let registers = Registers::new(schema);
        let rewriting = rewriting(&streams, &copy, layer.as_ref(), &registers);
        let reception = ["softswitch.reception", "softswitch.reception6"].map(|name| Reception::new(schema.table(name)?));
        Some(Self {
            registers,
            streams,
            reception,
            copy,
            layer,
            mgid: Arc::clone(schema.table("$pre.mgid")?),
            node: Arc::clone(schema.table("$pre.node")?),
            prune: Arc::clone(schema.table("$pre.prune")?),
            rewriting,
        })
    }

    fn table(&self, key: &Key) -> Option<&Arc<Table>> {
        Some(match key {
            Key::Stream(flow, _) => &self.streams[usize::from(flow.is_v6())].as_ref()?.table,
            Key::Copy(..) => &self.copy.table,
            Key::Layer(..) => &self.layer.as_ref()?.table,
            Key::Tree(_) => &self.mgid,
            Key::Node(_) => &self.node,
            Key::Prune(_) => &self.prune,
            Key::Relay(_) | Key::Track(_) | Key::SequenceState(_) => return None,
        })
    }

    pub(crate) fn offer(&self, routes: bool) -> Offer {
        Offer {
            rewriting: self.rewriting,
            limits: self.registers.limits(),
            registers: self.registers.exist(),
            routes,
            payload_types: pairs_of(&self.copy.table),
        }
    }

    fn counting(&self) -> impl Iterator<Item = &Counting> {
        self.streams.iter().flatten().chain(&self.layer)
    }

    /// Decodes key and counters of a row of `conference`, `layer` or `copy`.
    fn read_counted(&self, encoded: &[u8]) -> Option<Counted> {
        let row = TableRow::decode(encoded).ok()??;
        let number = |of: &Counting, at: usize| of.part(&row, at).map(shunt_bfrt::values::number);
        let whole = |of: &Counting, at: usize| u32::try_from(number(of, at)?).ok();
        if let Some(streams) = self.streams.iter().flatten().find(|one| one.table.id == row.table_id) {
            return Some(streams.counted(&row, streams.stream(&row)?));
        }
        if self.copy.table.id == row.table_id {
            return Some(self.copy.counted(&row, Key::Copy(whole(&self.copy, 0)?, whole(&self.copy, 1)?)));
        }
        let layer = self.layer.as_ref().filter(|layer| layer.table.id == row.table_id)?;
        let template = u8::try_from(number(layer, 1)?).ok()?;
        Some(layer.counted(&row, Key::Layer(whole(layer, 0)?, template)))
    }
}

/// Bits of a pair of payload types in the field of `copy`.
const PAIR_BITS: u32 = 16;

/// Most pairs of payload types in a row of `copy`.
fn pairs_of(copy: &Table) -> usize {
    let room = copy.actions.iter().filter(|action| !action.default_only).map(|action| {
        let kind = action.fields.find(PAYLOAD_TYPES).map(|field| field.kind);
        match kind {
            Some(schema::Kind::Bits(width)) => width.min(u64::BITS) / PAIR_BITS,
            _ => 0,
        }
    });
    room.min().unwrap_or(0) as usize
}

/// Encodes pairs of payload types: an octet each, the first pair in the lowest two.
fn pack(pairs: &[(u8, u8)]) -> Result<u64, PlaneError> {
    if pairs.len() > (u64::BITS / PAIR_BITS) as usize {
        return Err(PlaneError::Schema(format!(
            "a copy has no room for so many pairs of payload types: {pairs:?}"
        )));
    }
    let pair = |(from, to): &(u8, u8)| u64::from(*from) << 8 | u64::from(*to);
    Ok(pairs.iter().rev().fold(0, |packed, one| packed << PAIR_BITS | pair(one)))
}

fn unpack(packed: u64) -> Vec<(u8, u8)> {
    let octets = packed.to_be_bytes();
    let pairs = octets.rchunks(2).map(|pair| (pair[0], pair[1]));
    pairs.filter(|(from, to)| from != to).collect()
}

/// How a target rewrites sequence numbers for receivers of some layers.
fn rewriting(streams: &[Option<Counting>; 2], copy: &Counting, layer: Option<&Counting>, registers: &Registers) -> Rewriting {
    let has = |table: &Table, name: &str| {
        table
            .actions
            .iter()
            .filter(|action| !action.default_only)
            .all(|action| action.fields.find(name).is_some())
    };
    let Some(layer) = layer.filter(|_| has(&copy.table, "sequence_state")) else {
        return Rewriting::None;
    };
    let tracked = streams.iter().flatten().all(|one| has(&one.table, "track"));
    let told = ["target", "cadence"].into_iter().all(|name| has(&copy.table, name));
    match tracked {
        true if has(&layer.table, "switches") && (registers.sequence_state_registers || !registers.exist()) => Rewriting::SLr,
        false if told && registers.sequence_state_registers => Rewriting::SLm,
        _ => Rewriting::None,
    }
}

fn number(name: &str, value: impl Into<u64>) -> (String, Value) {
    (name.to_owned(), Value::Number(value.into()))
}

fn flow_fields(flow: &FiveTuple) -> Vec<(String, Value)> {
    let address = |name: &str, addr: IpAddr| (name.to_owned(), Value::Address(addr));
    vec![
        address("src_addr", flow.src.addr),
        address("dst_addr", flow.dst.addr),
        number("src_port", flow.src.port),
        number("dst_port", flow.dst.port),
    ]
}

fn key_fields(table: &Table, key: &Key) -> Vec<(String, Value)> {
    match key {
        Key::Stream(flow, ssrc) => {
            let mut fields = flow_fields(flow);
            fields.push(number("ssrc", *ssrc));
            fields
        }
        Key::Copy(stream, rid) => vec![number("stream", *stream), number("rid", *rid)],
        Key::Layer(layers, template) => vec![number("layers", *layers), number("template", *template)],
        Key::Tree(one) | Key::Node(one) | Key::Prune(one) => {
            let name = table.key.iter().next().map(|field| field.name.clone());
            name.map(|name| (name, Value::Number(u64::from(*one)))).into_iter().collect()
        }
        Key::Relay(_) | Key::Track(_) | Key::SequenceState(_) => Vec::new(),
    }
}

/// Name of an action, and its data fields.
type Fields = (Option<String>, Vec<(String, Value)>);

/// Returns action and data of a row. Parameters that the target lacks are left out if they have no effect.
fn data_fields(table: &Table, data: &Data) -> Result<Fields, PlaneError> {
    let (action, fields, nothing) = match data {
        Data::Stream(stream) => {
            let tree = stream.tree;
            let fields = vec![
                number("mgid", tree.mgid),
                number("l1_xid", tree.l1_xid),
                number("rid", tree.rid),
                number("l2_xid", tree.l2_xid),
                number("stream", tree.stream),
                number("to_agent", stream.to_agent),
                number("trees", tree.trees),
                number("layers", stream.layers),
                number("extension", stream.extension),
                number("descriptor", stream.descriptor),
                number("track", stream.track),
            ];
            (table.actions.iter().find(|action| !action.default_only), fields, ("trees", 1))
        }
        Data::Copy(copy) => {
            let name = if copy.addresses.is_v6() { "copy_to_v6" } else { "copy_to" };
            let mut fields = flow_fields(&copy.addresses);
            fields.extend([
                number("nexthop", copy.nexthop),
                number("target", copy.target as u64),
                number("sequence_state", copy.sequence_state),
                number("cadence", copy.cadence),
                number(PAYLOAD_TYPES, pack(&copy.payload_types)?),
            ]);
            (table.actions.find(name), fields, ("", 0))
        }
        Data::Layer(row) => {
            let fields = vec![number("layer", row.layer), number("switches", row.switches)];
            (table.actions.find("set_layer"), fields, ("", 0))
        }
        Data::Tree(members) => {
            let fields = vec![
                (NODES[0].into(), Value::Numbers(members.iter().map(|member| member.node).collect())),
                (NODES[1].into(), Value::Bools(vec![true; members.len()])),
                (
                    NODES[2].into(),
                    Value::Numbers(members.iter().map(|member| member.xid.into()).collect()),
                ),
            ];
            return Ok((None, fields));
        }
        Data::Node(node) => {
            let ports: Vec<u32> = node.port.into_iter().collect();
            let fields = vec![
                number("$MULTICAST_RID", node.rid),
                ("$MULTICAST_LAG_ID".into(), Value::Numbers(Vec::new())),
                (PORTS.into(), Value::Numbers(ports)),
            ];
            return Ok((None, fields));
        }
        Data::Prune(ports) => return Ok((None, vec![(PORTS.into(), Value::Numbers(ports.iter().copied().collect()))])),
        Data::Relay(_) | Data::Cleared => return Err(PlaneError::Schema(format!("{data:?} is no row of a conference's tables"))),
    };
    let action = action.ok_or_else(|| PlaneError::Schema(format!("{} has no action for {data:?}", table.name)))?;
    let mut made = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        if action.fields.find(&name).is_some() {
            made.push((name, value));
        } else if value != Value::Number(0) && (name.as_str(), value.clone()) != (nothing.0, Value::Number(nothing.1)) {
            return Err(PlaneError::Schema(format!(
                "{} has no {name}, which would be {value:?}",
                action.name
            )));
        }
    }
    Ok((Some(action.name.clone()), made))
}

/// The operation on one row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Add,
    Modify,
    Delete,
}

fn parts(step: &Step<Key, Data>) -> Option<(Kind, &Key, Option<&Data>)> {
    match step {
        Step::Add(key, data) => Some((Kind::Add, key, Some(data))),
        Step::Modify(key, data) => Some((Kind::Modify, key, Some(data))),
        Step::Delete(key) => Some((Kind::Delete, key, None)),
        Step::Drain => None,
    }
}

/// The updates of one step: several for registers, otherwise one.
fn updates(tables: &Tables, arena: &mut BytesMut, kind: Kind, key: &Key, data: Option<&Data>) -> Result<Vec<Bytes>, PlaneError> {
    let registers = tables.conference.as_ref().map(|conference| &conference.registers);
    match (key, registers) {
        (Key::Track(track), Some(registers)) => registers.clear_track(&tables.schema, *track),
        (Key::SequenceState(sequence_state), Some(registers)) => registers.clear_sequence_state(&tables.schema, *sequence_state),
        _ => Ok(vec![encode(tables, arena, kind, key, data)?]),
    }
}

fn encode(tables: &Tables, arena: &mut BytesMut, kind: Kind, key: &Key, data: Option<&Data>) -> Result<Bytes, PlaneError> {
    let none = || PlaneError::Schema(format!("the data plane has no table for {key:?}"));
    if let Key::Relay(flow) = key {
        let table = tables.relay_of(flow).ok_or_else(none)?;
        let Some(Data::Relay(new)) = data else {
            return Ok(table.delete(arena, flow));
        };
        let entry = RelayEntry::new(*flow, new.src, new.dst).map_err(|error| PlaneError::Schema(error.to_string()))?;
        return table.place(arena, &entry, kind == Kind::Modify).ok_or_else(none);
    }
    let conference = tables.conference.as_ref().ok_or_else(none)?;
    let table = conference.table(key).ok_or_else(none)?;
    // Every exclusion set has a row at all times.
    let (change, empty) = match (key, kind) {
        (Key::Prune(_), Kind::Delete) => (Change::Modify, Some(Data::Prune(BTreeSet::new()))),
        (Key::Prune(_), _) | (_, Kind::Modify) => (Change::Modify, None),
        (_, Kind::Add) => (Change::Insert, None),
        (_, Kind::Delete) => (Change::Delete, None),
    };
    let (action, data) = data
        .or(empty.as_ref())
        .map(|data| data_fields(table, data))
        .transpose()?
        .unwrap_or_default();
    let write = TableWrite {
        table: table.name.clone(),
        change,
        key: key_fields(table, key),
        action,
        data,
    };
    rows::encode(&tables.schema, &write)
}

/// Writes rows in this order. Every row is tried, and postponed ones are written again.
pub(crate) async fn write(
    session: &Session,
    tables: &Tables,
    steps: &[Step<Key, Data>],
) -> Result<Vec<Result<(), UpdateError>>, PlaneError> {
    let clears: Vec<Step<Key, Data>> = steps.iter().filter(|step| is_clear(step)).cloned().collect();
    if !clears.is_empty() {
        // If a register could not be cleared, no row may name it.
        let cleared = write_some(session, tables, &clears, true).await?;
        if let Some(error) = cleared.into_iter().find_map(Result::err) {
            return Ok(vec![Err(error); steps.len()]);
        }
    }
    let mut results = Vec::with_capacity(steps.len());
    for steps in steps.chunks(WRITES_AT_ONCE) {
        results.extend(write_some(session, tables, steps, false).await?);
    }
    Ok(results)
}

/// Returns whether the step clears registers.
fn is_clear(step: &Step<Key, Data>) -> bool {
    matches!(step, Step::Add(Key::Track(_) | Key::SequenceState(_), _))
}

/// Sends the steps that clear registers (`clears`), or all others.
async fn write_some(
    session: &Session,
    tables: &Tables,
    steps: &[Step<Key, Data>],
    clears: bool,
) -> Result<Vec<Result<(), UpdateError>>, PlaneError> {
    let mut results: Vec<Result<(), UpdateError>> = vec![Ok(()); steps.len()];
    let mut open: Vec<(usize, Kind)> = steps
        .iter()
        .enumerate()
        .filter_map(|(at, step)| Some((at, parts(step)?.0)))
        .filter(|(at, _)| steps.get(*at).is_some_and(is_clear) == clears)
        .collect();
    for round in 0..=ROUNDS {
        let mut arena = BytesMut::with_capacity(open.len() * 200);
        let (mut all, mut counts) = (Vec::with_capacity(open.len()), Vec::with_capacity(open.len()));
        for (at, kind) in &open {
            let made = match steps.get(*at).and_then(parts) {
                Some((_, key, data)) => updates(tables, &mut arena, *kind, key, data)?,
                None => Vec::new(),
            };
            counts.push(made.len());
            all.extend(made);
        }
        let mut answers = if all.is_empty() {
            Vec::new()
        } else {
            session.write(all, TIMEOUT).await?
        }
        .into_iter();
        // The first failure among the updates of one step counts.
        let answers: Vec<Result<(), UpdateError>> = counts
            .into_iter()
            .map(|count| answers.by_ref().take(count).fold(Ok(()), Result::and))
            .collect();
        let busy = answers.iter().any(|answer| answer.as_ref().is_err_and(UpdateError::is_temporary));
        let mut again = Vec::new();
        for ((at, kind), answer) in open.into_iter().zip(answers) {
            let key = steps.get(at).and_then(parts).map(|(_, key, _)| key);
            let answer = match (answer, kind, key) {
                (Err(error), Kind::Delete, _) if error.code == NOT_FOUND => Ok(()),
                (Err(error), Kind::Add, Some(Key::Stream(..) | Key::Copy(..) | Key::Layer(..) | Key::Tree(_) | Key::Relay(_)))
                    if error.code == EXISTS =>
                {
                    again.push((at, Kind::Modify));
                    Err(error)
                }
                (Err(error), Kind::Modify, Some(Key::Stream(..) | Key::Copy(..) | Key::Layer(..) | Key::Tree(_) | Key::Relay(_)))
                    if error.code == NOT_FOUND =>
                {
                    again.push((at, Kind::Add));
                    Err(error)
                }
                // Later rows may have failed only because a postponed row was missing.
                (Err(error), kind, _) if busy => {
                    again.push((at, kind));
                    Err(error)
                }
                (answer, ..) => answer,
            };
            if let Some(result) = results.get_mut(at) {
                *result = answer;
            }
        }
        if again.is_empty() {
            break;
        }
        open = again;
        if busy {
            tokio::time::sleep(RETRY_DELAY * 2_u32.pow(round)).await;
        }
    }
    Ok(results)
}

/// Reads all rows of the conferences' tables, except exclusion sets, whose rows always exist.
pub(crate) async fn all(session: &Session, tables: &Tables) -> Result<Vec<(Key, Data)>, PlaneError> {
    let conference = tables.conference.as_ref().ok_or_else(no_tables)?;
    let mut found = Vec::new();
    let mut read: Vec<&Arc<Table>> = conference.counting().map(|counting| &counting.table).collect();
    read.extend([&conference.copy.table, &conference.mgid, &conference.node]);
    for table in read {
        let rows = crate::questions::read_table(session, table, crate::questions::ALL_TIMEOUT).await?;
        found.extend(rows.iter().filter_map(|row| decode(conference, table, row)));
    }
    Ok(found)
}

pub(crate) fn no_tables() -> PlaneError {
    PlaneError::Schema("the data plane has no tables for conferences (softswitch.conference_copies is 0, or it is built without)".into())
}

fn decode(tables: &ConferenceTables, table: &Table, row: &Row) -> Option<(Key, Data)> {
    let named = |short: &str| {
        let suffix = format!(".{short}");
        let mut fields = row.key.iter().chain(&row.data);
        let found = fields.find(|(name, _)| name == short || name.ends_with(&suffix));
        found.map(|(_, value)| value)
    };
    let get = |short: &str| match named(short) {
        Some(Value::Bytes(bytes)) => shunt_bfrt::values::number(bytes),
        Some(Value::Number(number)) => *number,
        _ => 0,
    };
    let small = |short: &str| u32::try_from(get(short)).unwrap_or(0);
    let byte = |short: &str| u8::try_from(get(short)).unwrap_or(0);
    let list = |short: &str| match named(short) {
        Some(Value::Numbers(numbers)) => numbers.clone(),
        _ => Vec::new(),
    };
    // In `copy` these are data fields, in `conference` key fields.
    let flow = || {
        let end = |addr: &str, port: &str| match (named(addr)?, named(port)?) {
            (Value::Bytes(addr), Value::Bytes(port)) => endpoint(addr, port),
            _ => None,
        };
        Some(FiveTuple::new(end("src_addr", "src_port")?, end("dst_addr", "dst_port")?))
    };
    if tables.streams.iter().flatten().any(|streams| streams.table.id == table.id) {
        let data = Stream {
            tree: Replicate {
                mgid: small("mgid"),
                trees: small("trees").max(1),
                l1_xid: u16::try_from(get("l1_xid")).unwrap_or(0),
                rid: small("rid"),
                l2_xid: small("l2_xid"),
                stream: small("stream"),
            },
            to_agent: get("to_agent") != 0,
            layers: small("layers"),
            extension: byte("extension"),
            descriptor: byte("descriptor"),
            track: small("track"),
        };
        return Some((Key::Stream(flow()?, small("ssrc")), Data::Stream(data)));
    }
    if table.id == tables.copy.table.id {
        let data = Copy {
            addresses: flow()?,
            nexthop: small("nexthop"),
            target: usize::try_from(get("target")).unwrap_or(0),
            sequence_state: small("sequence_state"),
            cadence: byte("cadence"),
            payload_types: unpack(get(PAYLOAD_TYPES)),
        };
        return Some((Key::Copy(small("stream"), small("rid")), Data::Copy(data)));
    }
    if table.id == tables.mgid.id {
        let members = list(NODES[0]).into_iter().zip(list(NODES[2]));
        let members = members.map(|(node, xid)| Member {
            node,
            xid: u16::try_from(xid).unwrap_or(0),
        });
        return Some((Key::Tree(small(&table.key.iter().next()?.name)), Data::Tree(members.collect())));
    }
    if table.id == tables.node.id {
        let node = Node {
            rid: small("$MULTICAST_RID"),
            port: list(PORTS).first().copied(),
        };
        return Some((Key::Node(small(&table.key.iter().next()?.name)), Data::Node(node)));
    }
    let row = LayerRow {
        layer: byte("layer"),
        switches: u16::try_from(get("switches")).unwrap_or(0),
    };
    Some((Key::Layer(small("layers"), byte("template")), Data::Layer(row)))
}

/// Reads the counters of all rows of `conference` and `layer`.
pub(crate) async fn counted(session: &Session, tables: &Tables) -> Result<Vec<Counted>, PlaneError> {
    let conference = tables.conference.as_ref().ok_or_else(no_tables)?;
    let mut found = Vec::new();
    for counting in conference.counting() {
        read_counting(session, conference, counting, &mut found).await?;
    }
    Ok(found)
}

/// Reads the counters of all rows of `copy`.
pub(crate) async fn counted_copies(session: &Session, tables: &Tables) -> Result<Vec<Counted>, PlaneError> {
    let conference = tables.conference.as_ref().ok_or_else(no_tables)?;
    let mut found = Vec::new();
    read_counting(session, conference, &conference.copy, &mut found).await?;
    Ok(found)
}

/// Reads a whole table with the client for large reads.
async fn read_counting(
    session: &Session,
    conference: &ConferenceTables,
    counting: &Counting,
    found: &mut Vec<Counted>,
) -> Result<(), PlaneError> {
    let take = |part: Vec<Bytes>| found.extend(part.iter().filter_map(|row| conference.read_counted(row)));
    session
        .read_all_encoded(vec![whole(counting.table.id)], crate::questions::ALL_TIMEOUT, take)
        .await?;
    Ok(())
}

/// Reads the counters of these rows of `conference`, `layer` or `copy`; missing rows are left out.
pub(crate) async fn counted_of(session: &Session, tables: &Tables, keys: &[Key]) -> Result<Vec<Counted>, PlaneError> {
    use prost::Message as _;
    let conference = tables.conference.as_ref().ok_or_else(no_tables)?;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_ONCE) {
        let mut requests: Vec<Bytes> = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(table) = conference.table(key) {
                let entity = rows::question(table, &key_fields(table, key))?;
                requests.push(entity.encode_to_vec().into());
            }
        }
        if !requests.is_empty() {
            let rows = session.read_encoded(requests, TIMEOUT).await?;
            found.extend(rows.iter().filter_map(|row| conference.read_counted(row)));
        }
    }
    Ok(found)
}

/// Reads the reception of these streams; missing rows are left out. `None`: the target does not measure it.
pub(crate) async fn reception(session: &Session, tables: &Tables, keys: &[Key]) -> Result<Option<Vec<(Key, Counters)>>, PlaneError> {
    use prost::Message as _;
    let conference = tables.conference.as_ref().ok_or_else(no_tables)?;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_ONCE) {
        let mut requests: Vec<Bytes> = Vec::with_capacity(keys.len());
        for key in keys {
            let Key::Stream(flow, _) = key else { continue };
            let Some(Some(reception)) = conference.reception.get(usize::from(flow.is_v6())) else {
                return Ok(None);
            };
            let table = &reception.rows.table;
            requests.push(rows::question(table, &key_fields(table, key))?.encode_to_vec().into());
        }
        if requests.is_empty() {
            continue;
        }
        for encoded in session.read_encoded(requests, TIMEOUT).await? {
            let Ok(Some(row)) = TableRow::decode(&encoded) else { continue };
            let mut tables = conference.reception.iter().flatten();
            let table = tables.find(|table| table.rows.table.id == row.table_id);
            found.extend(table.and_then(|table| Some((table.rows.stream(&row)?, table.counters(&row)))));
        }
    }
    Ok(Some(found))
}

/// Encodes an `Entity` that requests all rows of a table.
fn whole(id: u32) -> Bytes {
    use prost::Message as _;
    use shunt_bfrt::pb::{Entity, TableEntry, entity};
    let entry = TableEntry {
        table_id: id,
        ..Default::default()
    };
    let entity = Entity {
        entity: Some(entity::Entity::TableEntry(entry)),
    };
    entity.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_as_they_were_packed() {
        for pairs in [&[][..], &[(111, 109)], &[(96, 120), (97, 124), (0, 8), (127, 0)]] {
            assert_eq!(unpack(pack(pairs).unwrap_or_default()), pairs);
        }
        assert_eq!(pack(&[(111, 109), (0, 8)]).ok(), Some(0x0008_6f6d), "the first pair is the lowest");
        assert!(pack(&[(1, 2); 5]).is_err());
    }
}
