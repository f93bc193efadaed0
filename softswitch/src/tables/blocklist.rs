//! `softswitch.blocklist`: sources whose packets never reach the relay.

use super::timed::{Kind, Names};
use shunt_bfrt::values::Data;
use shunt_bfrt::{pb, schema};
use shunt_net::Endpoint;
use shunt_relay_table::{Filters, TimedTable};
use shunt_xdp::Put;

#[derive(Clone, Copy)]
pub struct Blocklist;

impl Kind for Blocklist {
    type Row = u64;
    type More = ();
    const NAMES: Names = Names::Source;

    fn table(filters: &Filters) -> &TimedTable<u64> {
        &filters.blocklist
    }

    fn table_mut(filters: &mut Filters) -> &mut TimedTable<u64> {
        &mut filters.blocklist
    }

    fn decode(&self, _key: &Endpoint, _data: &Data<'_>) -> Result<(), String> {
        Ok(())
    }

    fn put(&self, filters: &mut Filters, key: &Endpoint, ttl_ms: u32, (): &()) -> shunt_xdp::Result<Put> {
        filters.block(key, ttl_ms)
    }

    fn more(&self, _row: &u64, _v6: bool) {}

    fn encode(&self, _schema: &schema::Table, (): &()) -> Vec<pb::DataField> {
        Vec::new()
    }
}
