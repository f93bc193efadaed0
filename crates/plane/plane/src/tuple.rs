//! Tables whose key is a 5-tuple of one IP version.

use crate::row::Values;
use crate::wire::Part;
use bytes::{Bytes, BytesMut};
use shunt_bfrt::schema::{Match, SchemaError, Table};
use shunt_net::{Endpoint, FiveTuple, octets};
use std::net::IpAddr;

/// A value that differs between the updates of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    SourceAddress,
    DestinationAddress,
    SourcePort,
    DestinationPort,
    NewSourceAddress,
    NewDestinationAddress,
    NewSourcePort,
    NewDestinationPort,
    /// Whether packets leave with the relay's DSCP, and its value.
    SetDscp,
    Dscp,
    /// The register of a sampled stream.
    Index,
}

/// The four fields by the schema's names.
pub(crate) const FIELDS: [(&str, Slot); 4] = [
    ("src_addr", Slot::SourceAddress),
    ("dst_addr", Slot::DestinationAddress),
    ("src_port", Slot::SourcePort),
    ("dst_port", Slot::DestinationPort),
];

/// Field numbers and templates of such a table.
#[derive(Clone, Debug)]
pub(crate) struct TupleTable {
    pub(crate) id: u32,
    pub(crate) v6: bool,
    ids: [u32; 4],
    key: Part<Slot>,
    read_one: Part<Slot>,
    read_all: Part<Slot>,
}

impl TupleTable {
    /// Resolves the table.
    ///
    /// # Errors
    /// The key is not a 5-tuple.
    pub(crate) fn new(table: &Table) -> Result<Self, SchemaError> {
        let wrong = || SchemaError(format!("{}: its key is not a 5-tuple", table.name));
        let (mut ids, mut sizes, mut key) = ([0; 4], [0; 4], Part::new());
        for (at, (name, slot)) in FIELDS.into_iter().enumerate() {
            let field = table
                .key
                .find(name)
                .filter(|field| field.matches == Some(Match::Exact))
                .ok_or_else(wrong)?;
            let size = field.size().ok_or_else(wrong)?;
            (ids[at], sizes[at]) = (field.id, size);
            let exact = Part::new().hole(1, size, slot);
            key = key.message(1, &Part::new().number(1, field.id.into()).message(2, &exact));
        }
        if table.key.len() != 4 || !matches!(sizes, [4, 4, 2, 2] | [16, 16, 2, 2]) {
            return Err(wrong());
        }
        // From the hardware, not from a driver's cache.
        let flags = Part::new().number(1, 1);
        let id = table.id;
        let read = |key: Option<&Part<Slot>>| {
            let entry = Part::new().number(1, id.into());
            let entry = key.map_or(entry.clone(), |key| entry.message(2, key));
            Part::new().message(1, &entry.message(9, &flags))
        };
        Ok(Self {
            id,
            v6: sizes[0] == 16,
            ids,
            read_one: read(Some(&key)),
            read_all: read(None),
            key,
        })
    }

    /// Encodes an `Update` of an entry with this key, and space for the values in `data`.
    pub(crate) fn update(&self, kind: i32, data: Option<&Part<Slot>>) -> Part<Slot> {
        let entry = Part::new().number(1, self.id.into()).message(2, &self.key);
        let entry = data.map_or(entry.clone(), |data| entry.message(3, data));
        Part::new().number(1, kind as u64).message(2, &Part::new().message(1, &entry))
    }

    /// Encodes an `Entity` that requests one entry.
    pub(crate) fn request(&self, arena: &mut BytesMut, key: &FiveTuple) -> Bytes {
        self.read_one.fill(arena, |slot, hole| fill_key(slot, hole, key))
    }

    /// Encodes an `Entity` that requests all entries.
    pub(crate) fn request_all(&self) -> Bytes {
        self.read_all.fill(&mut BytesMut::new(), |_, _| {})
    }

    /// Decodes the 5-tuple of a key; `None` if it lacks a field.
    pub(crate) fn key_of(&self, key: &Values<'_>) -> Option<FiveTuple> {
        let [src, dst, src_port, dst_port] = self.ids.map(|id| key.get(id));
        Some(FiveTuple::new(endpoint(src?, src_port?)?, endpoint(dst?, dst_port?)?))
    }
}

pub(crate) fn fill_key(slot: Slot, hole: &mut [u8], key: &FiveTuple) {
    match slot {
        Slot::SourceAddress => put_addr(hole, key.src.addr),
        Slot::DestinationAddress => put_addr(hole, key.dst.addr),
        Slot::SourcePort => put_port(hole, key.src.port),
        Slot::DestinationPort => put_port(hole, key.dst.port),
        _ => {}
    }
}

/// Encodes an address. One of the other IP version would leave zeros, but the caller has chosen the table by version.
pub(crate) fn put_addr(hole: &mut [u8], addr: IpAddr) {
    let bytes = octets(addr);
    if bytes.len() == hole.len() {
        hole.copy_from_slice(&bytes);
    }
}

pub(crate) fn put_port(hole: &mut [u8], port: u16) {
    if hole.len() == 2 {
        hole.copy_from_slice(&port.to_be_bytes());
    }
}

/// Decodes an address and a port; `None` for bytes of another length.
pub(crate) fn endpoint(addr: &[u8], port: &[u8]) -> Option<Endpoint> {
    Some(Endpoint::new(address(addr)?, u16::from_be_bytes(port.try_into().ok()?)))
}

pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}
