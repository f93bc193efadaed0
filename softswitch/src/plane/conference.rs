//! Conferences: their programs, maps and next hops.

use super::PlaneError;
use super::hops::KernelHops;
use super::programs;
use crate::config::Softswitch;
use crate::schema::ConferenceSizes;
use shunt_abi::replicate::rodata;
use shunt_relay_table::Fault;
use shunt_replication::{Exhausted, Hops, Options, Replication, sizes};
use shunt_xdp::{Constant, Directory, Loaded, Ring};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::IpAddr;

/// The conference part of the data plane.
pub struct Conference {
    pub tables: Replication,
    pub loaded: Loaded,
    /// Packets for the agent.
    pub packets: Ring,
}

impl Hops for KernelHops {
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Result<u16, Exhausted> {
        self.0.acquire(dst, src, 1).map_err(|error| Exhausted { rows: error.rows })
    }

    fn release(&mut self, dst: IpAddr, src: IpAddr) {
        self.0.release(dst, src);
    }

    fn output(&self, row: u16) -> u32 {
        let ifindex = self.0.describe(row).map_or(0, |hop| hop.ifindex);
        self.0.lowest(ifindex)
    }

    fn adopt(&mut self, dst: IpAddr, src: IpAddr, row: u16, _taken: &BTreeSet<u16>) -> u16 {
        self.0.adopt(dst, src, 1, row)
    }
}

impl Conference {
    /// Loads the programs with the relay's maps, and adopts pinned ones.
    ///
    /// # Errors
    /// The kernel rejects them.
    pub fn open(config: &Softswitch, directory: &Directory, relay: &programs::Relay, hops: &mut KernelHops) -> Result<Self, PlaneError> {
        let without: &[&str] = if config.packet_limit > 0 {
            &["replicate_native", "replicate_generic"]
        } else {
            &["replicate_limited_native", "replicate_limited_generic"]
        };
        let constants = translated(&relay.constants);
        let options = Options {
            directory,
            copies: config.conference_copies,
            relay: &relay.loaded.maps,
            constants: &constants,
            without,
        };
        let loaded = options.load()?;
        let mut tables = Replication::new(&loaded).map_err(conference_error)?;
        tables.adopt(hops, &BTreeSet::new()).map_err(conference_error)?;
        let packets = Ring::new(loaded.map("c_agent")?)?;
        Ok(Self { tables, loaded, packets })
    }

    /// Returns the tables' sizes for the schema.
    pub fn sizes(&self) -> ConferenceSizes {
        let copies = self.tables.capacity() as usize;
        let rows = sizes(copies);
        ConferenceSizes {
            streams: rows["c_streams"],
            layers: rows["c_layers"],
            copies,
            nodes: rows["c_nodes"],
        }
    }
}

/// Copies the relay's constants into the conference object.
fn translated(constants: &[Constant]) -> Vec<Constant> {
    use shunt_abi::relay::rodata as from;
    let places = [
        (offset_of!(from, last_slot), offset_of!(rodata, last_slot)),
        (offset_of!(from, packet_limit), offset_of!(rodata, packet_limit)),
        (offset_of!(from, limit_window), offset_of!(rodata, limit_window)),
        (offset_of!(from, limit_slots), offset_of!(rodata, limit_slots)),
        (offset_of!(from, idle_mismatch), offset_of!(rodata, idle_mismatch)),
        (offset_of!(from, tick_ns), offset_of!(rodata, tick_ns)),
        (offset_of!(from, fresh_ttl), offset_of!(rodata, fresh_ttl)),
        (offset_of!(from, fresh_hop_limit), offset_of!(rodata, fresh_hop_limit)),
        (offset_of!(from, drop_source_mismatch), offset_of!(rodata, drop_source_mismatch)),
    ];
    let place = |offset: usize| places.iter().find(|(from, _)| *from == offset).map(|(_, to)| *to);
    constants
        .iter()
        .filter_map(|one| {
            Some(Constant {
                offset: place(one.offset)?,
                bytes: one.bytes.clone(),
            })
        })
        .collect()
}

fn conference_error(fault: shunt_replication::Fault) -> PlaneError {
    match fault {
        shunt_replication::Fault::Kernel(error) => PlaneError::Kernel(error),
        other => PlaneError::Table(Fault::Kernel(other.to_string())),
    }
}
