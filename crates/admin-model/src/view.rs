//! Snapshots: the agent and its calls as plain values. `docs/admin-api.md` has their JSON.

use crate::event::{Component, SdpLine};
use crate::text::Text;
use serde::{Deserialize, Serialize};
use shunt_calls::{Reason, Side, State};
use shunt_net::Endpoint;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The agent as a whole. `api`, `epoch` and `events` are added by the server.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    /// Unix time, µs.
    pub started_us: u64,
    pub uptime_s: f64,
    pub role: Role,
    /// Whether commands are answered and calls offloaded; if not, `problems` says why.
    pub ready: bool,
    pub problems: Vec<Problem>,
    /// Control sockets.
    pub control: Vec<String>,
    pub relays: Vec<RelayStatus>,
    /// `None`: none is configured.
    pub data_plane: Option<DataPlaneStatus>,
    pub calls: u64,
    /// Calls of the journal that are restored when a command or a packet asks for them.
    pub calls_to_restore: u64,
    pub streams: Vec<StreamCount>,
    pub commands: Commands,
    pub hep: Option<HepStatus>,
    pub journal: Option<JournalStatus>,
    pub drain: DrainStatus,
    pub media_timeouts: u64,
    pub source_mismatches: u64,
    /// Calls and media lines that are over.
    pub ended: EndedCounts,
    /// Packets that met no entry, as the data plane reported them: of calls' ports, and of others.
    pub learn_notices: u64,
    /// Writes to the data plane; `None`: none is configured.
    pub table_writes: Option<TableWrites>,
    /// How often each limit was met (docs/limits.md).
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

/// Something that an operator should see to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// A word for programs: `relay-down`, `data-plane-down`, `journal-failed`, `events-dropped`, …
    pub code: String,
    pub message: String,
    pub since_s: Option<u64>,
}

/// What is over, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndedCounts {
    pub calls: u64,
    /// Media lines that had an answer, and of which no packet of one party was seen.
    pub one_way: u64,
    /// The same of both parties.
    pub zero_packet: u64,
}

/// Writes to the tables of the data plane, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableWrites {
    /// Requests with writes in them.
    pub batches: u64,
    pub updates: u64,
    /// Requests that were repeated, with what was not done yet.
    pub retries: u64,
    /// Writes that were not done.
    pub failures: u64,
    /// Of those, because of another entry with the same hash.
    pub collisions: u64,
    /// Writes that wait.
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
    /// Why the last command to its control socket had no reply.
    pub error: Option<String>,
}

/// An interface of the softswitch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceStatus {
    pub name: String,
    /// Mode of the program that is attached now: `native`, `generic`, or `none`.
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
    /// Entries at this agent's ports that are of no plan, and wait to be removed.
    pub orphans: u64,
    /// Whether tables and plan have been compared since the connection was made.
    pub reconciled: bool,
    /// What this data plane cannot do, one sentence each.
    pub lacks: Vec<String>,
    /// Packets that it has relayed, of all agents.
    pub packets_relayed: Option<u64>,
    /// Its own counters, of all agents; `None`: they could not be read.
    pub totals: Option<BTreeMap<String, u64>>,
    /// `None`: it does not tell.
    pub interfaces: Option<Vec<InterfaceStatus>>,
    /// How old `entries`, `packets_relayed`, `totals` and `interfaces` are.
    pub age_s: Option<f64>,
}

/// How many RTP streams have this state and reason.
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

/// What draining stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopOf {
    /// New streams stay on the relay; those in the data plane stay there. The agent is empty when no entry is left.
    Offloads,
    /// The same; the agent is empty when every call has ended, those on the relay too.
    Calls,
}

#[derive(Clone, Debug, Serialize)]
pub struct DrainStatus {
    /// `None`: the agent does not drain.
    pub stop: Option<StopOf>,
    pub since_s: Option<f64>,
    /// It goes on where another agent of the group takes over.
    pub group: bool,
    /// What is still there.
    pub calls: u64,
    pub entries: u64,
}

/// Which calls.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFilter {
    /// State and reason of one and the same stream.
    pub state: Option<State>,
    pub reason: Option<Reason>,
    /// Part of the Call-ID.
    #[serde(rename = "match")]
    pub part: Option<Text>,
    /// At most so many, 1 to 1,000.
    #[serde(default = "default_limit")]
    pub limit: usize,
    /// Those after a page's `next`.
    pub after: Option<u64>,
    /// Whether counters are read from the data plane for this page.
    #[serde(default)]
    pub counters: CountersOf,
}

/// Which counters calls are shown with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountersOf {
    /// Those at hand.
    #[default]
    Last,
    /// Those that are read now.
    Fresh,
}

fn default_limit() -> usize {
    100
}

/// Some calls, the oldest first.
#[derive(Clone, Debug, Serialize)]
pub struct CallPage {
    pub calls: Vec<CallView>,
    /// How many calls fit the filter.
    pub total: u64,
    /// For `after`; `None`: these are the last.
    pub next: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CallView {
    pub call: Text,
    /// Unix time, µs.
    pub started_us: u64,
    pub age_s: f64,
    pub lines: Vec<LineView>,
    /// Why counters could not be read now; those given are of the time that their `age_s` says.
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
    /// Why it is over; its last entries are on their way out.
    pub released: Option<Reason>,
    pub caller: LegView,
    pub callee: LegView,
    pub streams: Vec<StreamView>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LegView {
    pub signalled: Option<Endpoint>,
    /// Where its packets come from, once latched.
    pub latched: Option<Endpoint>,
    pub latched_rtcp: Option<Endpoint>,
    /// Where it sends to.
    pub relay_port: Option<Endpoint>,
    pub asymmetric: bool,
    pub source_mismatches: u64,
    /// RTP payload types with the number of packets noticed of each.
    pub payload_types: Vec<(u8, u32)>,
    /// Who may send to the relay port; `None`: everybody.
    pub allowed_sources: Option<Vec<IpAddr>>,
    /// The party's last SDP of this line, where a copy of it came.
    pub sdp: Option<SdpLine>,
    /// While nothing of it has arrived at `relay_port`: the source and the port of its packets that arrive elsewhere.
    pub sends_from: Option<Endpoint>,
    pub sends_to: Option<Endpoint>,
    /// Packets that the relay counted, and how old that is.
    pub relay_packets: Option<u64>,
    pub relay_packets_age_s: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StreamView {
    /// Who sends it.
    pub from: Side,
    pub component: Component,
    pub state: State,
    pub reason: Reason,
    pub detail: Option<String>,
    pub since_s: f64,
    pub entry: Option<Entry>,
    pub was_offloaded: bool,
    /// From both parties' first packet to its first entry; `None`: it had none, or that is not known.
    pub offloaded_after_us: Option<u64>,
    /// Of all entries of the stream, as last read; `None`: it had none, or none was read.
    pub counters: Option<Counters>,
    /// How old `counters` is; 0 where the stream has no entry any more.
    pub counters_age_s: Option<f64>,
    /// How long no packet has met the entry: until now where the data plane has reported it idle, else until `counters` was read.
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

/// What entries counted. `None`: this data plane does not count it.
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

/// Where a packet would go.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// The data plane's answer; `None`: it cannot trace.
    pub data_plane: Option<TraceVerdict>,
    /// Whose packets arrive at the destination; `None`: nobody's.
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

/// What a comparison of the relay table with the plan found.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    pub entries: u64,
    pub missing: u64,
    pub unexpected: u64,
    pub different: u64,
    /// Writes that were begun to mend it.
    pub writes: u64,
    pub took_s: f64,
}

/// What the log has: a filter of tracing-subscriber, as `info,shunt_agent=debug`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFilter {
    pub filter: String,
}
