//! Call state, and the plan of the relay table.
//!
//! [`Book`] is the only owner of call state. Events go in: commands of the SIP server with the relay's replies, learn notices, copies of
//! SIP, results of table writes, idle times. Each event returns [`Decision`]s as plain data. The crate has no I/O, and time is an argument.
//!
//! # What a call consists of
//!
//! ```text
//! Book                 all calls of the agent
//! ├─ Call              a Call-ID: finds its lines by tag and media index
//! ├─ Line              an m= line of SDP: one session of a relay
//! │  ├─ Leg × 2        caller and callee: signalled address, relay port, source filter
//! │  │  └─ Latch × 2   RTP and RTCP: the latched source of the party's packets
//! │  ├─ Stream × 4     what one leg sends of one component: state, reason, counters
//! │  ├─ Branch × n     the callees of a forked call; the relay sends to the last one
//! │  └─ Holds          what the relay does to the media, each with its holder
//! └─ Table             for each relay port its stream, and the entry in the data plane
//! ```
//!
//! A *component* is RTP or RTCP (RFC 8445). With rtcp-mux a line has no RTCP streams. Each stream is offloaded separately, and only while
//! the line has no holds.
//!
//! # Commands
//!
//! [`Book::command`] handles a command before the relay gets it, [`Book::replied`] after the relay has answered. First the entries of
//! whatever signalling changes are removed ([`Step::Pass`] names the deletes to wait for), so that the relay sees the change happen. Then
//! the addresses are learned anew.
//!
//! An NG command uses [`Book::ng_command`] and [`Book::ng_replied`]; rtpengine's description of the call goes to [`Book::ng_described`].
//!
//! # The life of a stream
//!
//! `allocated → learning → offloaded → (suspended → learning …) → released`, each with a [`Reason`].
//!
//! # Ports
//!
//! The reply to U has the port that the callee sends to, the reply to L the one that the caller sends to. If R:Pu and R:Pl are these ports,
//! and A and B the sources of caller and callee, a line has the entries
//!
//! ```text
//! A → R:Pl   becomes   R:Pu → B          B → R:Pu   becomes   R:Pl → A
//! ```
//!
//! and the same for RTCP at the ports above, unless RTCP is muxed.
#![forbid(unsafe_code)]

mod alike;
mod book;
mod call;
mod decision;
mod ended;
mod entry;
mod former;
mod hold;
mod ids;
mod journal;
mod leg;
mod limits;
mod line;
mod lines;
mod misdirected;
mod plan;
mod reason;
mod recent;
mod record;
mod sdp;
mod settings;
mod stream;
mod table;
mod timers;

pub use book::{After, Book, Comparison, Foreseen, LegView, LineView, Notice, PortHeld, Step, StreamView, is_unknown_call, stem};
pub use decision::{Decision, Ended, EndedLine, EndedParty, Happening, Purpose};
pub use entry::{Counters, EntryError, Idle, Operation, Outcome, Reading, RelayEntry};
pub use hold::{Hold, Holder, recorders};
pub use ids::{LineId, RelayId, Side, State, StreamId, WriteId};
pub use journal::{
    DirectionRow, EntryRow, HoldRow, LearnedRow, LegRow, NameRow, NotificationRow, RestoreError, Row, RowKey, SdpRow, StreamRow, Text,
};
pub use limits::Refusal;
pub use misdirected::Misdirected;
pub use reason::Reason;
pub use sdp::{Sdp, SdpFormat, SdpKind};
pub use settings::{Limits, MediaRange, Rate, Relay, RelayKind, Settings};
pub use shunt_hep::sip::Direction;
pub use shunt_latch::{Component, Ignored, Time, Verdict};
pub use table::Write;
