//! `softswitch.greylist`: port ranges of a relay address that admit unknown sources after several packets only.

use super::timed::{Kind, Names};
use shunt_abi::relay::greylist;
use shunt_bfrt::values::{Data, number, stream};
use shunt_bfrt::{pb, schema};
use shunt_net::Endpoint;
use shunt_relay_table::{Filters, TimedTable};
use shunt_xdp::Put;

#[derive(Clone, Copy)]
pub struct Greylist;

/// The fields `ports0` to `ports3`: the first port in the upper half, the last in the lower.
const PORTS: std::ops::RangeInclusive<u32> = 2..=5;

impl Kind for Greylist {
    type Row = greylist;
    type More = Vec<(u16, u16)>;
    const NAMES: Names = Names::RelayAddress;

    fn table(filters: &Filters) -> &TimedTable<greylist> {
        &filters.greylist
    }

    fn table_mut(filters: &mut Filters) -> &mut TimedTable<greylist> {
        &mut filters.greylist
    }

    fn decode(&self, _key: &Endpoint, data: &Data<'_>) -> Result<Vec<(u16, u16)>, String> {
        let mut ranges = Vec::new();
        for both in PORTS.filter_map(|id| data.bytes(id)).map(number).filter(|both| *both != 0) {
            let (first, last) = ((both >> 16) as u16, both as u16);
            if first > last {
                return Err(format!("Ports {first}-{last} are no range"));
            }
            ranges.push((first, last));
        }
        Ok(ranges)
    }

    fn put(&self, filters: &mut Filters, key: &Endpoint, ttl_ms: u32, more: &Vec<(u16, u16)>) -> shunt_xdp::Result<Put> {
        filters.set_greylist(key, ttl_ms, more)
    }

    fn more(&self, row: &greylist, _v6: bool) -> Vec<(u16, u16)> {
        Filters::ranges(row)
    }

    fn of_others(&self, row: &greylist, is_own: &dyn Fn(u16) -> bool) -> Option<Vec<(u16, u16)>> {
        let mut ranges = Filters::ranges(row);
        ranges.retain(|(first, _)| !is_own(*first));
        (!ranges.is_empty()).then_some(ranges)
    }

    fn join(&self, mut own: Vec<(u16, u16)>, others: Vec<(u16, u16)>) -> Result<Vec<(u16, u16)>, String> {
        own.extend(others);
        if own.len() > PORTS.count() {
            return Err(format!("{} ranges of one address, those of other programs among them,", own.len()));
        }
        Ok(own)
    }

    fn encode(&self, _schema: &schema::Table, more: &Vec<(u16, u16)>) -> Vec<pb::DataField> {
        let mut given = more.iter();
        let both = |range: Option<&(u16, u16)>| range.map_or(0, |(first, last)| u32::from(*first) << 16 | u32::from(*last));
        PORTS.map(|id| stream(id, both(given.next()).to_be_bytes())).collect()
    }
}
