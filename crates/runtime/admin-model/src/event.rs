//! Events as plain values. `docs/admin-api.md` has the JSON of each kind.

use crate::text::Text;
use crate::view::{Counters, Entry, HoldView};
use serde::{Deserialize, Serialize};
use shunt_calls::{Reason, Side, State};
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::time::Duration;

/// One event to append. The log adds sequence number and times.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time since it began; zero: now.
    pub ago: Duration,
    /// The Call-ID of the control channel, or of SIP for `sip`; `None`: the agent as a whole.
    pub call: Option<Text>,
    /// The media index of the control channel.
    pub media: Option<u32>,
    pub party: Option<Side>,
    pub component: Option<Component>,
    pub facts: Facts,
}

impl Event {
    /// Makes an event of the agent as a whole, which happens now.
    #[must_use]
    pub fn of_agent(facts: Facts) -> Self {
        Self {
            ago: Duration::ZERO,
            call: None,
            media: None,
            party: None,
            component: None,
            facts,
        }
    }

    /// Makes an event of a call, which happens now.
    #[must_use]
    pub fn of_call(call: &[u8], facts: Facts) -> Self {
        Self {
            call: Some(call.into()),
            ..Self::of_agent(facts)
        }
    }
}

/// RTP, or RTCP on its own port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Component {
    Rtp,
    Rtcp,
}

impl From<shunt_calls::Component> for Component {
    fn from(component: shunt_calls::Component) -> Self {
        match component {
            shunt_calls::Component::Rtp => Self::Rtp,
            shunt_calls::Component::Rtcp => Self::Rtcp,
        }
    }
}

/// The content of an event; the variant is its kind.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Facts {
    Sip(Box<SipFacts>),
    Control(Box<ControlFacts>),
    Learn(LearnFacts),
    Table(TableFacts),
    State(StateFacts),
    Call(CallFacts),
    Ended(Box<EndedFacts>),
    Relay(LinkFacts),
    DataPlane(LinkFacts),
    Agent(AgentFacts),
    Conference(Box<ConferenceFacts>),
}

impl Facts {
    /// Returns the kind's name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sip(_) => "sip",
            Self::Control(_) => "control",
            Self::Learn(_) => "learn",
            Self::Table(_) => "table",
            Self::State(_) => "state",
            Self::Call(_) => "call",
            Self::Ended(_) => "ended",
            Self::Relay(_) => "relay",
            Self::DataPlane(_) => "data-plane",
            Self::Agent(_) => "agent",
            Self::Conference(_) => "conference",
        }
    }
}

/// A SIP message from a HEP copy.
#[derive(Clone, Debug, Serialize)]
pub struct SipFacts {
    #[serde(flatten)]
    pub start: SipStart,
    /// The Reason-Phrase of a response (RFC 3261 section 7.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phrase: Option<Text>,
    pub source: Option<Endpoint>,
    pub destination: Option<Endpoint>,
    /// Method and number of CSeq.
    pub cseq_method: Text,
    pub cseq: Option<u32>,
    /// URIs of From and To, without parameters of the header.
    pub from: Option<Text>,
    pub to: Option<Text>,
    pub from_tag: Option<Text>,
    pub to_tag: Option<Text>,
    /// The Request-URI of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_uri: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<Text>,
    /// The Reason header (RFC 3326) of BYE and CANCEL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text>,
    /// `None`: there is no SDP.
    pub sdp: Option<Vec<SdpLine>>,
}

/// Request or response.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SipStart {
    Method(Text),
    Status(u16),
}

/// A media line of an SDP body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SdpLine {
    /// `audio`, `video`, …
    pub medium: Text,
    pub address: Option<IpAddr>,
    /// 0: rejected.
    pub port: u16,
    pub direction: Direction,
    pub formats: Vec<Format>,
    pub ptime_ms: Option<u32>,
    pub rtcp_mux: bool,
}

/// RFC 8866 section 6.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    #[default]
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

/// A format of an m= line, from `a=rtpmap` or the static payload types (RFC 3551 section 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Format {
    pub payload_type: u8,
    pub encoding: Text,
    /// Hz.
    pub clock_rate: u32,
}

/// A control command, and its reply.
#[derive(Clone, Debug, Serialize)]
pub struct ControlFacts {
    /// The command's letter in the rtpproxy protocol, its word in NG; `None` if it is not understood.
    pub verb: Option<Box<str>>,
    /// At most 1,024 bytes.
    pub command: Text,
    /// At most 1,024 bytes; `None`: no reply.
    pub reply: Option<Text>,
    /// The relay that answered; `None`: the agent itself.
    pub relay: Option<Text>,
    /// The SIP server's address; `None` over a Unix socket.
    pub peer: Option<IpAddr>,
    /// Time until the reply, µs.
    pub took_us: u64,
}

/// A packet without an entry, and the verdict on its source.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LearnFacts {
    pub verdict: Verdict,
    pub source: Endpoint,
    /// Its destination: relay address and port.
    pub port: Endpoint,
    /// SSRC, sequence number and payload type of RTP; `None`: not RTP.
    pub ssrc: Option<u32>,
    pub sequence: Option<u16>,
    pub payload_type: Option<u8>,
    /// Number of packets with the same verdict from the same source.
    pub count: u32,
}

/// Verdict of learning on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Latched,
    Moved,
    Restored,
    Known,
    Contested,
    Waiting,
    AskedIdle,
    Scanner,
    Quarantined,
    Former,
    SourceMismatch,
    Asymmetric,
}

/// A failed write to the relay table.
#[derive(Clone, Debug, Serialize)]
pub struct TableFacts {
    pub operation: TableOperation,
    pub entry: Entry,
    pub outcome: Outcome,
    /// The data plane's text.
    pub detail: Option<Text>,
    pub took_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TableOperation {
    Insert,
    Modify,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Rejected,
    TableFull,
    HashCollision,
    HostPolicy,
    /// No acknowledgement came: the entry may exist or not.
    Unacknowledged,
    Unavailable,
}

/// A stream's state, or the reason for it, has changed.
#[derive(Clone, Debug, Serialize)]
pub struct StateFacts {
    pub state: State,
    pub before: State,
    pub reason: Reason,
    /// Detail of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Text>,
    /// The entry, when the stream becomes offloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
    /// The entry's counters, when the stream is no longer offloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// When the stream becomes offloaded: time since both parties' first packet, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_us: Option<u64>,
}

/// An event of a call or of one of its media lines.
#[derive(Clone, Debug, Serialize)]
pub struct CallFacts {
    pub what: CallWhat,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The address that a party moved from, and the one that it moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Endpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Endpoint>,
    /// For `idle`: time without a packet. For `media-timeout`: the relay's time-out, or its set-up time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallWhat {
    /// Signalling changes the line: its entries are removed.
    Suspended,
    /// Signalling is complete: learning continues.
    Resumed,
    /// A party has another address.
    Moved,
    /// An entry has matched no packet for its time-out.
    Idle,
    /// Packets match it again.
    Active,
    /// The agent ends the session because no media comes.
    MediaTimeout,
    /// The notice of a time-out could not be delivered.
    NotifyFailed,
    /// Read from the journal, or from the relay's list of sessions, after a restart.
    Restored,
    Adopted,
    /// An operator has released the call.
    ReleaseRequested,
    /// A client begins and ends to capture the call's packets; `detail` names the client.
    CaptureBegun,
    CaptureEnded,
}

/// A call has ended: all of its lines and entries are removed.
#[derive(Clone, Debug, Serialize)]
pub struct EndedFacts {
    /// Number of calls ended in this epoch, including this one. A gap shows missing events.
    pub number: u64,
    pub reason: Reason,
    pub relay: Text,
    pub from_tag: Text,
    pub to_tag: Option<Text>,
    /// Time of the first command (Unix time in µs), and the time since.
    pub started_us: u64,
    pub duration_s: f64,
    pub lines: Vec<EndedLine>,
}

/// A media line of an ended call.
#[derive(Clone, Debug, Serialize)]
pub struct EndedLine {
    pub media: Option<u32>,
    pub from_tag: Text,
    pub to_tag: Option<Text>,
    pub reason: Reason,
    /// Both relay ports were known.
    pub answered: bool,
    /// Recordings of its media by the relay, the last 16 of those that ended before the line.
    pub recorded: Vec<HoldView>,
    /// How many recorders that were.
    pub recorders: u64,
    pub caller: EndedParty,
    pub callee: EndedParty,
}

/// Counters of one party of a line.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EndedParty {
    pub signalled: Option<Endpoint>,
    pub source: Option<Endpoint>,
    /// Its destination.
    pub relay_port: Option<Endpoint>,
    /// RTP that the data plane carried; `None`: none.
    pub rtp: Option<Counters>,
    pub rtcp: Option<Counters>,
    /// Packets that the relay counted, by the latest query of the SIP server or the agent; `None`: no query.
    pub relay_packets: Option<u64>,
    /// RTP payload types with the number of noticed packets of each.
    pub payload_types: Vec<(u8, u32)>,
    /// The party's last SDP of this line, if HEP brought a copy.
    pub sdp: Option<SdpLine>,
    pub offloaded: bool,
    pub offloaded_after_us: Option<u64>,
    pub source_mismatches: u64,
}

/// A relay or the data plane answers again, or does not answer.
#[derive(Clone, Debug, Serialize)]
pub struct LinkFacts {
    pub what: LinkWhat,
    /// A relay's name, or the data plane's target.
    pub name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkWhat {
    Up,
    Down,
    /// It came back without its tables.
    Reset,
    /// Tables and plan agree again.
    Reconciled,
}

/// An event of the agent as a whole.
#[derive(Clone, Debug, Serialize)]
pub struct AgentFacts {
    pub what: AgentWhat,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Text>,
    /// For `started`: the last number of the previous epoch; `None`: no event of it is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_seq: Option<u64>,
    /// For `started`: whether the previous epoch ended with `stopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentWhat {
    /// The first event of an epoch; the log appends it.
    Started,
    /// The last event of a clean epoch; the log appends it.
    Stopped,
    Active,
    Standby,
    DrainBegun,
    DrainEnded,
    Audited,
    JournalFailed,
    JournalRecovered,
    /// The agent's loop was late.
    Late,
    /// A limit was reached (docs/limits.md); `detail` names it.
    Limit,
}

/// An event of a conference.
#[derive(Clone, Debug, Serialize)]
pub struct ConferenceFacts {
    pub conference: Text,
    /// One of the values in docs/admin-api.md: `joined`, `left`, `source`, `target`, …
    pub what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub participant: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<Text>,
    /// Fields of this `what`.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl AgentFacts {
    #[must_use]
    pub fn of(what: AgentWhat) -> Self {
        Self {
            what,
            detail: None,
            previous_seq: None,
            clean: None,
        }
    }
}

impl CallFacts {
    #[must_use]
    pub fn of(what: CallWhat) -> Self {
        Self {
            what,
            reason: None,
            before: None,
            source: None,
            seconds: None,
            detail: None,
        }
    }
}
