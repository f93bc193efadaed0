//! Every system call of the data plane. The crates above it are free of `unsafe`.

mod clock;
mod device_map;
mod error;
mod hash;
mod interface;
mod link;
mod memory;
mod object;
mod pin;
mod plain;
mod ring;
mod run;
mod shared;

pub use clock::{monotonic_coarse_ns, monotonic_ns, tick_ms};
pub use device_map::DeviceMap;
pub use error::{Error, Result};
pub use hash::{Hash, PerCpu, Put, Scan, set_inner_map, set_inner_maps};
pub use interface::{disable_offloads, requested_offloads, set_offloads};
pub use link::{Link, Mode};
pub use memory::return_freed_memory;
pub use object::{Constant, Load, Loaded, create_array, map_names};
pub use pin::{Directory, is_bpffs};
pub use plain::{Plain, bytes_of, from_bytes};
pub use ring::Ring;
pub use run::{TestRun, run_live, test_run};
pub use shared::Shared;
