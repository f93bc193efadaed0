//! The admin API of the agent: snapshots, commands and the event stream, over HTTP on a Unix socket. `docs/admin-api.md` is its reference.
//!
//! [`EventLog`] keeps events in segment files; [`EventLog::append`] never blocks. [`Server`] answers requests from an [`Admin`], which the agent
//! implements, and streams the event log to followers. Call state and time-outs are the agent's: nothing here decides anything. The values that
//! requests, answers and events hold are those of [`shunt_admin_model`].
#![forbid(unsafe_code)]

mod admin;
mod log;
mod repeats;
mod server;

pub use admin::Admin;
pub use log::{EventLog, Follow, LogError, LogSettings, LogStatus};
pub use repeats::{Repeated, Repeats};
pub use server::{Server, ServerError, ServerSettings, bind_unix, serve_metrics};
pub use shunt_admin_model::*;
