//! Learning who is behind the NAT: which source address and port a media stream has.
//!
//! A relay that takes the first packet at a port for its party's lets anybody who sprays the port range steal or inject a stream (RTP Bleed,
//! CVE-2017-14114; RTP Inject, CVE-2025-53399). A [`Latch`] is the state machine of one stream, that is of one party's RTP or RTCP. Packets
//! from sources other than the latched one come in, a [`Verdict`] on each goes out. There is no I/O, and time comes in as an argument.
//!
//! # What counts
//!
//! *Names.* Signalling names addresses of a party: SDP's connection address, also where it differs from the SIP source; the SIP source; the
//! place that an INVITE goes to. A name with a port is better than one without. An address of several parties ([`Parties`]), or one from
//! which somebody scans ([`Scanners`]), is no identity. See [`Rank`].
//!
//! *Continuity.* A source shows a run of packets of one SSRC with advancing sequence numbers, at least [`Policy::packets`] of them over
//! [`Policy::guard`], without a pause of [`Policy::max_gap`]. Scanners, whatever address they use, touch each port too rarely for that, or
//! repeat themselves. At the very address and port that signalling names, [`Policy::port_packets`] over [`Policy::port_guard`] do, as long as
//! nobody else at a named address sends and nobody scans from there.
//!
//! # The life of a stream
//!
//! *Open*: nothing is latched. A source with a name that is an identity is latched at once. Any other needs continuity, and no rival: no other
//! source of the same rank or a better one with a run of [`Policy::rival_packets`] in the last [`Policy::contest_hold`].
//!
//! *Contested*: there is a rival. Nothing is latched; who has shown continuity is among the [`Latch::admitted`], so that a source filter never
//! keeps a party out for longer than the attack lasts. The contest ends when all but one have fallen silent, or send only now and then.
//!
//! *Latched*. The stream stays with its source; others are a source mismatch, except:
//! * a source of a better rank takes over: a named address where an unknown one was latched;
//! * in the first seconds ([`Policy::probation`], counted anew from the answer) another source with continuity and the same rank makes the
//!   stream contested: who comes first is not always the party;
//! * another source with continuity and the same rank takes over from one that has fallen silent: after signalling, for
//!   [`Policy::signalling_window`], from an unknown source too; at other times only from a named address that is an identity;
//! * the same SSRC from another source is a NAT rebinding: it takes over after [`Policy::rebind_packets`] packets whose sequence numbers go on
//!   where the old ones ended, if the old source has been silent for [`Policy::rebind_silence`] (else for a second). If the old source sends
//!   a later number after all, it was an injection: the stream goes back at once, and for a minute only a second of silence convinces.
//!
//! Where the latched source's packets are not seen, because a data plane forwards them, the verdict is [`Verdict::Ask`]: the caller looks
//! when the source's last packet came, and calls [`Latch::answer`].
//!
//! *Quarantined* are the old source after signalling has moved the party ([`Latch::forget`]), and the stream of the call that had the port
//! before ([`Former`]), as long as it goes on.
//!
//! An off-path attacker, who never sees the media, can at worst keep a stream contested (on the relay) while he sends steadily from an address
//! of the same rank; he is latched only where no party sends.
#![forbid(unsafe_code)]

mod candidate;
mod former;
mod generations;
mod holder;
mod judge;
mod latch;
mod learner;
mod names;
mod parties;
mod policy;
mod scanners;
mod time;
mod touches;
mod verdict;

pub use former::Former;
pub use latch::Latch;
pub use learner::Learner;
pub use names::{Name, Names, Rank};
pub use parties::Parties;
pub use policy::Policy;
pub use scanners::{Found, Scanners, Suspicion};
pub use time::Time;
pub use verdict::{Component, Facts, Ignored, Packet, Verdict};
