//! `softswitch.source_filter`: an even relay port and the next one, and the source addresses admitted there.

use super::address;
use super::timed::{Kind, Names};
use shunt_abi::relay::source_filter;
use shunt_bfrt::values::{Data, stream};
use shunt_bfrt::{pb, schema};
use shunt_net::{Endpoint, octets};
use shunt_relay_table::{Filters, TimedTable};
use shunt_xdp::Put;
use std::net::IpAddr;

#[derive(Clone, Copy)]
pub struct SourceFilter;

/// The fields `allowed0` to `allowed3`.
const ALLOWED: std::ops::RangeInclusive<u32> = 2..=5;

impl Kind for SourceFilter {
    type Row = source_filter;
    type More = Vec<IpAddr>;
    const NAMES: Names = Names::RelayPort;

    fn table(filters: &Filters) -> &TimedTable<source_filter> {
        &filters.source_filters
    }

    fn table_mut(filters: &mut Filters) -> &mut TimedTable<source_filter> {
        &mut filters.source_filters
    }

    fn decode(&self, key: &Endpoint, data: &Data<'_>) -> Result<Vec<IpAddr>, String> {
        if !key.port.is_multiple_of(2) {
            return Err(format!("Port {} is odd: a source filter is of an even port and the next", key.port));
        }
        let given = ALLOWED
            .filter_map(|id| data.bytes(id))
            .filter(|bytes| bytes.iter().any(|byte| *byte != 0));
        Ok(given.map(address).collect())
    }

    fn put(&self, filters: &mut Filters, key: &Endpoint, ttl_ms: u32, more: &Vec<IpAddr>) -> shunt_xdp::Result<Put> {
        filters.set_source_filter(key, ttl_ms, more)
    }

    fn more(&self, row: &source_filter, v6: bool) -> Vec<IpAddr> {
        Filters::allowed(row, v6)
    }

    fn encode(&self, schema: &schema::Table, more: &Vec<IpAddr>) -> Vec<pb::DataField> {
        let size = schema.key.iter().next().and_then(schema::Field::size).unwrap_or(0);
        let mut given = more.iter();
        ALLOWED
            .map(|id| {
                given
                    .next()
                    .map_or_else(|| stream(id, vec![0; size]), |addr| stream(id, &*octets(*addr)))
            })
            .collect()
    }
}
