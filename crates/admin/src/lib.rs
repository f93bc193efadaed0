//! The admin API of the agent: snapshots, commands and the event stream, over HTTP on a Unix socket. `docs/admin-api.md` is its reference.
//!
//! [`EventLog`] keeps events in segment files; [`EventLog::append`] never blocks. [`Server`] answers requests from an [`Admin`], which the agent
//! implements, and streams the event log to followers. Call state and time-outs are the agent's: nothing here decides anything.
#![forbid(unsafe_code)]

mod admin;
mod conference;
mod event;
mod log;
mod repeats;
mod server;
mod text;
mod view;

pub use admin::{Admin, Failure, FailureKind};
pub use conference::{
    Announcements, Codec, Conference, ConferenceSummary, CopiedStream, Credentials, Decision, Estimate, Join, JoinMedium, Layers,
    MediumUsage, Mixed, PairQuality, Participant, ParticipantMedium, ParticipantUpdate, Quality, QualityChange, StreamRate, Subscription,
    TargetChange, Tile, TiledCodec, TiledColumn, TiledStream, Tiling, TilingWish, Unjoined, Untiled, Usage,
};
pub use event::{
    AgentFacts, AgentWhat, CallFacts, CallWhat, Component, ConferenceFacts, ControlFacts, Direction, EndedFacts, EndedLine, EndedParty,
    Event, Facts, Format, LearnFacts, LinkFacts, LinkWhat, Outcome, SdpLine, SipFacts, SipStart, StateFacts, TableFacts, TableOperation,
    Verdict,
};
pub use log::{EventLog, Follow, LogError, LogSettings, LogStatus};
pub use repeats::Repeats;
pub use server::{Server, ServerError, ServerSettings, bind_unix, serve_metrics};
pub use text::{Text, TextError};
pub use view::{
    Audit, CallFilter, CallPage, CallView, Commands, Counters, CountersOf, DataPlaneStatus, DrainStatus, EndedCounts, Entry, HepStatus,
    InterfaceStatus, JournalStatus, LegView, LineView, LogFilter, Problem, RelayStatus, Role, Status, StopOf, StreamCount, StreamView,
    TableWrites, Trace, TraceCall, TraceVerdict,
};
