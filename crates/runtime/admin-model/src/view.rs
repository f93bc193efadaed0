//! Snapshots: the agent and its calls as plain values. `docs/admin-api.md` has their JSON.

use crate::event::{Component, SdpLine};
use crate::text::Text;
use serde::{Deserialize, Serialize};
use shunt_calls::{Reason, Side, State};
use shunt_net::Endpoint;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The agent as a whole. The server adds `api`, `epoch` and `events`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    /// Unix time, µs.
    pub started_us: u64,
    pub uptime_s: f64,
    pub role: Role,
    /// Whether commands are answered and calls offloaded; otherwise `problems` gives the reasons.
    pub ready: bool,
    pub problems: Vec<Problem>,
    /// Control sockets.
    pub control: Vec<String>,
    pub relays: Vec<RelayStatus>,
    /// `None`: none is configured.
    pub data_plane: Option<DataPlaneStatus>,
    pub calls: u64,
    /// Calls in the journal that are restored when a command or a packet needs them.
    pub calls_to_restore: u64,
    pub streams: Vec<StreamCount>,
    pub commands: Commands,
    pub hep: Option<HepStatus>,
    pub journal: Option<JournalStatus>,
    pub drain: DrainStatus,
    pub media_timeouts: u64,
    pub source_mismatches: u64,
    /// Ended calls and media lines.
    pub ended: EndedCounts,
    /// Packets without an entry, as the data plane reported them: at ports of calls, and at others.
    pub learn_notices: u64,
    /// Writes to the data plane; `None`: none is configured.
    pub table_writes: Option<TableWrites>,
    /// How often each limit was reached (docs/limits.md).
    pub limits: BTreeMap<String, u64>,
    /// `None`: conferences are not configured.
    pub conferences: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Not one of a pair.
    Single,
    Active,
    Standby,
}

/// A problem for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Code for programs: `relay-down`, `data-plane-down`, `journal-failed`, `events-dropped`, …
    pub code: String,
    pub message: String,
    pub since_s: Option<u64>,
}

/// Ended calls since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndedCounts {
    pub calls: u64,
    /// Answered media lines without a packet of one party.
    pub one_way: u64,
    /// Answered media lines without a packet of either party.
    pub zero_packet: u64,
}

/// Writes to the tables of the data plane, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableWrites {
    /// Requests with writes.
    pub batches: u64,
    pub updates: u64,
    /// Repeated requests, with the writes that had no result.
    pub retries: u64,
    /// Failed writes.
    pub failures: u64,
    /// Failed writes because another entry has the same hash.
    pub collisions: u64,
    /// Waiting writes.
    pub waiting: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct RelayStatus {
    pub name: String,
    pub address: String,
    pub alive: bool,
    pub sessions: Option<u64>,
    pub version: Option<String>,
    /// How its sessions are kept alive: `ttl`, `lookup`; `None`: not known yet.
    pub keepalive: Option<String>,
    pub packets_relayed: Option<u64>,
    /// Reason why the last command to its control socket had no reply.
    pub error: Option<String>,
}

/// An interface of the softswitch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceStatus {
    pub name: String,
    /// Mode of the program attached now: `native`, `generic`, or `none`.
    pub mode: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct DataPlaneStatus {
    pub target: String,
    pub connected: bool,
    pub name: Option<String>,
    /// Entries in the data plane, of all agents.
    pub entries: Option<u64>,
    pub capacity: Option<u64>,
    /// Entries of this agent's plan.
    pub planned: u64,
    /// Entries at this agent's ports that are not in the plan, and wait to be removed.
    pub orphans: u64,
    /// Whether tables and plan have been compared since the connection was made.
    pub reconciled: bool,
    /// Missing functions of this data plane, one sentence each.
    pub lacks: Vec<String>,
    /// Packets that it has relayed, of all agents.
    pub packets_relayed: Option<u64>,
    /// Its own counters, of all agents; `None`: they could not be read.
    pub totals: Option<BTreeMap<String, u64>>,
    /// `None`: the data plane does not report them.
    pub interfaces: Option<Vec<InterfaceStatus>>,
    /// Age of `entries`, `packets_relayed`, `totals` and `interfaces`.
    pub age_s: Option<f64>,
}

/// Number of RTP streams with this state and reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StreamCount {
    pub state: State,
    pub reason: Reason,
    pub streams: u64,
}

/// Control commands since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Commands {
    /// By the command's letter.
    pub by_verb: BTreeMap<String, u64>,
    pub not_understood: u64,
    pub retransmissions: u64,
    pub without_reply: u64,
}

/// Copies of SIP since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HepStatus {
    pub messages: u64,
    pub byes: u64,
    pub blocked: u64,
    pub malformed: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct JournalStatus {
    /// `sqlite` or `redis`.
    pub kind: String,
    pub failures: u64,
    /// Rows that wait to be written.
    pub pending: u64,
    pub error: Option<String>,
}

/// The part that draining stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopOf {
    /// New streams stay on the relay; those in the data plane stay there. The agent is empty when no entry is left.
    Offloads,
    /// The same, but the agent is empty only when every call has ended, including those on the relay.
    Calls,
}

#[derive(Clone, Debug, Serialize)]
pub struct DrainStatus {
    /// `None`: the agent does not drain.
    pub stop: Option<StopOf>,
    pub since_s: Option<f64>,
    /// It continues if another agent of the group takes over.
    pub group: bool,
    /// Calls and entries that are left.
    pub calls: u64,
    pub entries: u64,
}

/// Selection of calls.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFilter {
    /// State and reason of the same stream.
    pub state: Option<State>,
    pub reason: Option<Reason>,
    /// Part of the Call-ID.
    #[serde(rename = "match")]
    pub part: Option<Text>,
    /// Most calls, 1 to 1,000.
    #[serde(default = "default_limit")]
    pub limit: usize,
    /// `next` of the previous page.
    pub after: Option<u64>,
    /// Whether counters are read from the data plane for this page.
    #[serde(default)]
    pub counters: CountersOf,
}

/// Which counters to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountersOf {
    /// The last known ones.
    #[default]
    Last,
    /// Counters that are read now.
    Fresh,
}

fn default_limit() -> usize {
    100
}

/// A page of calls, the oldest first.
#[derive(Clone, Debug, Serialize)]
pub struct CallPage {
    pub calls: Vec<CallView>,
    /// Number of calls that match the filter.
    pub total: u64,
    /// For `after`; `None`: this is the last page.
    pub next: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CallView {
    pub call: Text,
    /// Unix time, µs.
    pub started_us: u64,
    pub age_s: f64,
    pub lines: Vec<LineView>,
    /// Why counters could not be read now; the given ones are as old as their `age_s`.
    pub counters_error: Option<String>,
}

/// A media line: one session of a relay.
#[derive(Clone, Debug, Serialize)]
pub struct LineView {
    /// The media index of the control channel.
    pub media: Option<u32>,
    pub relay: Text,
    pub from_tag: Text,
    pub to_tag: Option<Text>,
    /// Reason why it ended, while its last entries are being removed.
    pub released: Option<Reason>,
    pub caller: LegView,
    pub callee: LegView,
    pub streams: Vec<StreamView>,
    /// What commands have the relay do to the media.
    pub holds: Vec<HoldView>,
    /// How many recorders get the media.
    pub recorders: u64,
}

/// Something that the relay does to a line's media.
#[derive(Clone, Debug, Serialize)]
pub struct HoldView {
    pub reason: Reason,
    /// The command or option that began it: `C`, `start recording`, `record-call`; `None`: the agent did not see it.
    pub command: Option<Text>,
    /// Whose media; `None`: both parties', or that is not known.
    pub party: Option<Side>,
    /// Whose media by the words of the command for rtpengine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Text>,
    /// A subscription at rtpengine, by its tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<Text>,
    /// Whether somebody else gets the media.
    pub recording: bool,
    /// Where copies go; empty: into a file, or that is not known.
    pub to: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LegView {
    pub signalled: Option<Endpoint>,
    /// Source of its packets, once latched.
    pub latched: Option<Endpoint>,
    pub latched_rtcp: Option<Endpoint>,
    /// Its destination.
    pub relay_port: Option<Endpoint>,
    pub asymmetric: bool,
    pub source_mismatches: u64,
    /// RTP payload types with the number of noticed packets of each.
    pub payload_types: Vec<(u8, u32)>,
    /// Allowed sources at the relay port; `None`: all.
    pub allowed_sources: Option<Vec<IpAddr>>,
    /// The party's last SDP of this line, if HEP brought a copy.
    pub sdp: Option<SdpLine>,
    /// While none of its packets has arrived at `relay_port`: source and port of packets that arrive elsewhere.
    pub sends_from: Option<Endpoint>,
    pub sends_to: Option<Endpoint>,
    /// Packets that the relay counted, and the age of that count.
    pub relay_packets: Option<u64>,
    pub relay_packets_age_s: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StreamView {
    /// The sender.
    pub from: Side,
    pub component: Component,
    pub state: State,
    pub reason: Reason,
    pub detail: Option<String>,
    pub since_s: f64,
    pub entry: Option<Entry>,
    pub was_offloaded: bool,
    /// Time from both parties' first packet to its first entry; `None`: it had none, or that is unknown.
    pub offloaded_after_us: Option<u64>,
    /// Sum of all entries of the stream at the last reading; `None`: it had none, or none was read.
    pub counters: Option<Counters>,
    /// Age of `counters`; 0 if the stream has no entry any more.
    pub counters_age_s: Option<f64>,
    /// Time without a packet on the entry: until now if the data plane has reported it idle, otherwise until `counters` was read.
    pub idle_s: Option<f64>,
}

/// An entry of the relay table: packets from `source` to `destination` leave from `new_source` to `new_destination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// `None` for a delete.
    pub new_source: Option<Endpoint>,
    pub new_destination: Option<Endpoint>,
}

/// Counters of entries. `None`: this data plane does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    pub packets: u64,
    /// Of IP packets.
    pub bytes: u64,
    pub lost: Option<u64>,
    pub reordered: Option<u64>,
    pub duplicates: Option<u64>,
    /// Interarrival jitter, RFC 3550 section 6.4.1, ms.
    pub jitter_ms: Option<f64>,
    pub jitter_max_ms: Option<f64>,
}

impl From<shunt_calls::Counters> for Counters {
    fn from(counters: shunt_calls::Counters) -> Self {
        Self {
            packets: counters.packets,
            bytes: counters.bytes,
            lost: counters.lost,
            reordered: counters.reordered,
            duplicates: counters.duplicates,
            jitter_ms: counters.jitter_us.map(|jitter| f64::from(jitter) / 1000.0),
            jitter_max_ms: counters.jitter_max_us.map(|jitter| f64::from(jitter) / 1000.0),
        }
    }
}

/// Where the data plane would send a packet.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// The data plane's answer; `None`: it has no trace.
    pub data_plane: Option<TraceVerdict>,
    /// The call whose packets arrive at the destination, if any.
    pub call: Option<TraceCall>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TraceVerdict {
    pub verdict: String,
    pub reason: Option<String>,
    pub out_source: Option<Endpoint>,
    pub out_destination: Option<Endpoint>,
    pub out_interface: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TraceCall {
    pub call: Text,
    pub media: Option<u32>,
    pub from: Side,
    pub component: Component,
    pub state: State,
    pub reason: Reason,
    pub expected_source: Option<Endpoint>,
}

/// Result of a comparison of the relay table with the plan.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    pub entries: u64,
    pub missing: u64,
    pub unexpected: u64,
    pub different: u64,
    /// Writes that correct it.
    pub writes: u64,
    pub took_s: f64,
}

/// The log filter of tracing-subscriber, such as `info,shunt_agent=debug`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFilter {
    pub filter: String,
}
