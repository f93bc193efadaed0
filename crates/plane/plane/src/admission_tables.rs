//! The tables of source filter, blocklist, allowlist and greylist by the schema: converts rows to updates.

use crate::admission::{ALLOW_TTL, Change, FILTER_TTL};
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::{self, update::Type};
use shunt_bfrt::schema::{Field, Schema, SchemaError, Table};
use shunt_bfrt::values::{exact, stream};
use shunt_calls::MediaRange;
use shunt_net::{Endpoint, octets};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time to live of a greylist row.
pub(crate) const GREYLIST_TTL: Duration = Duration::from_secs(86_400);

/// A table whose key is an address, in some tables with a port.
#[derive(Clone, Debug)]
struct PortTable {
    table: Arc<Table>,
    key: Vec<u32>,
    ttl: u32,
    /// The other data fields, with their sizes.
    more: Vec<(u32, usize)>,
}

impl PortTable {
    fn new(table: &Arc<Table>) -> Result<Self, SchemaError> {
        let ttl = table.data.named("ttl_ms")?.id;
        let size = |field: &Field| {
            field
                .size()
                .ok_or_else(|| SchemaError(format!("{}: {} is no bit string", table.name, field.name)))
        };
        let more = table.data.iter().filter(|field| field.id != ttl);
        Ok(Self {
            ttl,
            key: table.key.iter().map(|field| field.id).collect(),
            more: more.map(|field| Ok((field.id, size(field)?))).collect::<Result<_, SchemaError>>()?,
            table: Arc::clone(table),
        })
    }

    fn entry(&self, end: Option<Endpoint>, data: Option<pb::TableData>) -> pb::Entity {
        let key = end.map(|end| {
            let port = end.port.to_be_bytes();
            let address = octets(end.addr);
            let values: [&[u8]; 2] = [&address, &port];
            let fields = self.key.iter().zip(values).map(|(id, value)| exact(*id, value));
            pb::table_entry::Value::Key(pb::TableKey { fields: fields.collect() })
        });
        let entry = pb::TableEntry {
            table_id: self.table.id,
            value: key,
            data,
            ..Default::default()
        };
        pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry)),
        }
    }

    /// Encodes a row with this time to live and these values; missing values are zeros.
    fn put(&self, end: Endpoint, ttl: Duration, more: &[Vec<u8>]) -> Bytes {
        let milliseconds = u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
        let mut fields = vec![stream(self.ttl, milliseconds.to_be_bytes())];
        for (at, (id, size)) in self.more.iter().enumerate() {
            let zeros = vec![0; *size];
            fields.push(stream(*id, more.get(at).unwrap_or(&zeros)));
        }
        update(
            Type::InsertOrModify,
            self.entry(Some(end), Some(pb::TableData { action_id: 0, fields })),
        )
    }

    fn delete(&self, end: Endpoint) -> Bytes {
        update(Type::Delete, self.entry(Some(end), None))
    }

    fn clear(&self) -> Bytes {
        update(Type::Delete, self.entry(None, None))
    }
}

pub(crate) fn update(kind: Type, entity: pb::Entity) -> Bytes {
    let update = pb::Update {
        r#type: kind.into(),
        entity: Some(entity),
    };
    update.encode_to_vec().into()
}

/// A table for IPv4 and its twin for IPv6.
#[derive(Clone, Debug, Default)]
struct Pair([Option<PortTable>; 2]);

impl Pair {
    fn new(schema: &Schema, name: &str) -> Result<Self, SchemaError> {
        let find = |name: &str| schema.table(name).map(PortTable::new).transpose();
        Ok(Self([find(name)?, find(&format!("{name}6"))?]))
    }

    fn of(&self, addr: IpAddr) -> Option<&PortTable> {
        self.0[usize::from(addr.is_ipv6())].as_ref()
    }

    fn exists(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

/// The tables of this kind that the target has.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdmissionTables {
    filters: Pair,
    blocked: Pair,
    allowed: Pair,
    greylist: Pair,
}

impl AdmissionTables {
    /// # Errors
    /// A table of these names is not as the agent knows it.
    pub(crate) fn new(schema: &Schema) -> Result<Self, SchemaError> {
        Ok(Self {
            filters: Pair::new(schema, "softswitch.source_filter")?,
            blocked: Pair::new(schema, "softswitch.blocklist")?,
            allowed: Pair::new(schema, "softswitch.allowlist")?,
            greylist: Pair::new(schema, "softswitch.greylist")?,
        })
    }

    pub(crate) fn filter_sources(&self) -> bool {
        self.filters.exists()
    }

    pub(crate) fn blocks_sources(&self) -> bool {
        self.blocked.exists()
    }

    /// Returns the number of addresses that a source filter holds.
    pub(crate) fn filter_addresses(&self) -> usize {
        self.filters.0.iter().flatten().map(|table| table.more.len()).min().unwrap_or(0)
    }

    /// Encodes a change; `None` if the target has no table for it.
    pub(crate) fn encode(&self, change: &Change, block_for: Duration) -> Option<Bytes> {
        match change {
            Change::Filter(port, Some(allowed)) => {
                let rows: Vec<Vec<u8>> = allowed.iter().map(|addr| octets(*addr).to_vec()).collect();
                Some(self.filters.of(port.addr)?.put(*port, FILTER_TTL, &rows))
            }
            Change::Filter(port, None) => Some(self.filters.of(port.addr)?.delete(*port)),
            Change::Block(source, true) => Some(self.blocked.of(source.addr)?.put(*source, block_for, &[])),
            Change::Block(source, false) => Some(self.blocked.of(source.addr)?.delete(*source)),
            Change::Allow(addr, true) => Some(self.allowed.of(*addr)?.put(Endpoint::new(*addr, 0), ALLOW_TTL, &[])),
            Change::Allow(addr, false) => Some(self.allowed.of(*addr)?.delete(Endpoint::new(*addr, 0))),
        }
    }

    /// Encodes updates that clear source filters and blocklist.
    pub(crate) fn clear(&self) -> Vec<Bytes> {
        let tables = self.filters.0.iter().chain(&self.blocked.0).flatten();
        tables.map(PortTable::clear).collect()
    }

    /// Encodes greylist rows for these ports. Also returns the ports that did not fit.
    pub(crate) fn greylist(&self, ranges: &[MediaRange]) -> (Vec<Bytes>, Vec<MediaRange>) {
        let mut by_address: BTreeMap<IpAddr, Vec<MediaRange>> = BTreeMap::new();
        for range in ranges {
            by_address.entry(range.addr).or_default().push(*range);
        }
        let (mut rows, mut over) = (Vec::new(), Vec::new());
        for (addr, ranges) in by_address {
            let Some(table) = self.greylist.of(addr) else { continue };
            let (fit, rest) = ranges.split_at(ranges.len().min(table.more.len()));
            over.extend_from_slice(rest);
            let ports = fit
                .iter()
                .map(|range| [range.first_port.to_be_bytes(), range.last_port.to_be_bytes()].concat());
            rows.push(table.put(Endpoint::new(addr, 0), GREYLIST_TTL, &ports.collect::<Vec<_>>()));
        }
        (rows, over)
    }
}
