//! Learns the source address and port of a media stream whose party may be behind NAT.
//!
//! A relay that trusts the first packet at a port lets anyone who scans the port range steal or inject a stream (RTP Bleed, CVE-2017-14114;
//! RTP Inject, CVE-2025-53399). A [`Latch`] is the state machine of one stream: one party's RTP or RTCP. Packets of sources other than the
//! latched one go in, and a [`Verdict`] on each comes out. There is no I/O, and time is an argument.
//!
//! # Claims
//!
//! *Names.* Signalling names addresses of a party: SDP's connection address, the SIP source, and the destination of an INVITE. A name with
//! a port is better than one without. An address that several parties share ([`Parties`]), or that scans ([`Scanners`]), does not identify
//! a party. See [`Rank`].
//!
//! *Continuity.* A source shows continuity by a run of packets of one SSRC with advancing sequence numbers: at least [`Policy::packets`]
//! over [`Policy::guard`]. Scanners touch each port too rarely for a run, or repeat themselves. At the signalled address and port,
//! [`Policy::port_packets`] over [`Policy::port_guard`] suffice if no other source at a signalled address sends, and the address does not
//! scan.
//!
//! # The life of a stream
//!
//! *Open*: nothing is latched. A source at a signalled address that identifies the party is latched at once. Any other source needs
//! continuity and no rival. A rival is another source of at least the same rank with a run of [`Policy::rival_packets`] in the last
//! [`Policy::contest_hold`].
//!
//! *Contested*: there is a rival, and nothing is latched. Sources with continuity are among [`Latch::admitted`], so a source filter never
//! keeps a party out for longer than the attack lasts. The contest ends when all but one source have fallen silent or send only rarely.
//!
//! *Latched*: the stream stays with its source. Other sources are source mismatches, except:
//! * A source of a better rank takes over, for example at a signalled address where an unknown source was latched.
//! * During [`Policy::probation`], which restarts at the answer, another source with continuity and the same rank makes the stream
//!   contested, because the first source need not be the party.
//! * Another source with continuity and the same rank replaces a silent source. For [`Policy::signalling_window`] after signalling this
//!   includes unknown sources; later the address must be signalled and identify the party.
//! * The same SSRC from another source is a NAT rebinding. It takes over after [`Policy::rebind_packets`] packets that continue the
//!   sequence numbers, if the old source has been silent for [`Policy::rebind_silence`] (otherwise for a second). If the old source then
//!   sends a later number, the rebinding was an injection. The stream returns at once, and for a minute a rebinding needs a second of
//!   silence.
//!
//! A data plane may forward the latched source's packets unseen. Then the verdict is [`Verdict::Ask`]: the caller reads the time of the
//! source's last packet and calls [`Latch::answer`].
//!
//! *Quarantined* are the old source after signalling has moved the party ([`Latch::forget`]), and the stream of the call that had the port
//! before ([`Former`]), while it continues.
//!
//! An off-path attacker, who never sees the media, can at worst keep a stream contested (on the relay) by sending steadily from an address
//! of the same rank. The attacker is latched only if no party sends.
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
