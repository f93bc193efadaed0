//! The admin API's requests, snapshots and events as plain values. `docs/admin-api.md` has their JSON.
#![forbid(unsafe_code)]

mod capture;
mod conference;
mod event;
mod failure;
mod text;
mod view;

pub use capture::{CaptureFilter, CaptureLine, CapturedSip};
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
pub use failure::{Failure, FailureKind};
pub use text::{Text, TextError};
pub use view::{
    Audit, CallFilter, CallPage, CallView, Commands, Counters, CountersOf, DataPlaneStatus, DrainStatus, EndedCounts, Entry, HepStatus,
    HoldView, InterfaceStatus, JournalStatus, LegView, LineView, LogFilter, Problem, RelayStatus, Role, Status, StopOf, StreamCount,
    StreamView, TableWrites, Trace, TraceCall, TraceVerdict,
};
