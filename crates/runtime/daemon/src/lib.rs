//! What the daemons have in common: reading the checked configuration, the log, capabilities, Unix sockets, and how a process begins and ends.
#![forbid(unsafe_code)]

mod capabilities;
mod document;
mod failure;
mod log;
mod ports;
mod process;
mod unix_socket;
pub mod values;

pub use capabilities::{Capability, keep_capabilities};
pub use document::{DocumentError, parse as parse_document, read_document};
pub use failure::Failure;
pub use log::{Log, log_filter, set_log_filter, set_up_log};
pub use ports::PortRange;
pub use process::{CommonArguments, Pulse, Signals, run, say_draining, say_ready, say_stopping};
pub use unix_socket::{SocketFile, listen_unix};

/// What `--version` says: the version, the commit (where a package was built), the compiler, the target and the profile.
pub const VERSION: &str = env!("SHUNT_VERSION");
