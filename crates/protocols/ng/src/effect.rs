//! What a command does to a call whose media bypasses rtpengine.

use crate::command::Command;
use crate::options::All;
use crate::verb::Verb;
use std::fmt;

/// What follows for media that bypasses rtpengine. It may go on as it is only with [`Effect::None`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing: the command reads, or is about no call.
    None,
    /// From now on rtpengine must see every packet.
    Blocks(Cause),
    /// This cause is over, for those whom the command names. It may go on for others: see [`Whom`].
    Unblocks(Cause),
    /// The call, or a branch of it, is over.
    Ends,
    /// Ports, addresses and what is done to packets are agreed anew; `query` tells afterwards.
    Negotiates,
    /// Who gets whose media changes; `query` tells afterwards.
    Subscribes,
}

/// Why rtpengine must see the packets from a command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    Recording,
    Forwarding,
    BlockMedia,
    BlockDtmf,
    SilenceMedia,
    /// Ends with the file too: `duration` of the reply, in milliseconds.
    PlayMedia,
    /// Ends by itself: 250 ms for each event if not told otherwise.
    PlayDtmf,
    Subscription,
    Inject,
    Transform,
    /// A command that is not known here may do anything.
    Unknown,
}

impl Cause {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Forwarding => "forwarding",
            Self::BlockMedia => "block media",
            Self::BlockDtmf => "block DTMF",
            Self::SilenceMedia => "silence media",
            Self::PlayMedia => "play media",
            Self::PlayDtmf => "play DTMF",
            Self::Subscription => "subscription",
            Self::Inject => "inject",
            Self::Transform => "transform",
            Self::Unknown => "unknown command",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom of a call a command is about. Versions differ on whether a from-tag alone selects a party of `block media` and its like; it does so here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whom {
    /// The call. What was set for single parties stays: `unblock media` of a call does not unblock a party that was blocked by its tag.
    Call,
    /// The call and each of its parties.
    Everyone,
    /// Those that tags, a label, an address or a branch select.
    Parties,
}

impl Whom {
    pub(crate) fn of(command: &Command<'_>) -> Self {
        let by_branch = command.to_tag.is_some() || command.via_branch.is_some();
        let by_name = command.from_tag.is_some() || command.label.is_some() || command.to_label.is_some() || command.address.is_some();
        let is_part = match command.verb {
            // rtpengine records whole calls.
            Verb::StartRecording | Verb::StopRecording | Verb::PauseRecording => false,
            // A delete without a from-tag is of the whole call, whatever else it names; with one alone, the other parties lose their peer.
            Verb::Delete => command.from_tag.is_some() && by_branch,
            _ if command.options.all == All::All => return Self::Everyone,
            _ => by_branch || by_name || !command.from_tags.is_empty() || command.options.all != All::None,
        };
        if is_part { Self::Parties } else { Self::Call }
    }
}

pub(crate) fn effect(verb: Verb, has_call: bool) -> Effect {
    match verb {
        Verb::Ping | Verb::Query | Verb::List | Verb::Statistics => Effect::None,
        Verb::Offer | Verb::Answer | Verb::Create | Verb::CreateAnswer => Effect::Negotiates,
        Verb::Delete => Effect::Ends,
        Verb::StartRecording => Effect::Blocks(Cause::Recording),
        Verb::StopRecording | Verb::PauseRecording => Effect::Unblocks(Cause::Recording),
        Verb::StartForwarding => Effect::Blocks(Cause::Forwarding),
        Verb::StopForwarding => Effect::Unblocks(Cause::Forwarding),
        Verb::BlockDtmf => Effect::Blocks(Cause::BlockDtmf),
        Verb::UnblockDtmf => Effect::Unblocks(Cause::BlockDtmf),
        Verb::BlockMedia => Effect::Blocks(Cause::BlockMedia),
        Verb::UnblockMedia => Effect::Unblocks(Cause::BlockMedia),
        Verb::SilenceMedia => Effect::Blocks(Cause::SilenceMedia),
        Verb::UnsilenceMedia => Effect::Unblocks(Cause::SilenceMedia),
        Verb::PlayMedia => Effect::Blocks(Cause::PlayMedia),
        Verb::StopMedia => Effect::Unblocks(Cause::PlayMedia),
        Verb::PlayDtmf => Effect::Blocks(Cause::PlayDtmf),
        Verb::InjectStart => Effect::Blocks(Cause::Inject),
        Verb::InjectStop => Effect::Unblocks(Cause::Inject),
        Verb::Publish | Verb::SubscribeRequest | Verb::SubscribeAnswer | Verb::Connect | Verb::Mesh => Effect::Subscribes,
        Verb::Unsubscribe => Effect::Unblocks(Cause::Subscription),
        Verb::Transform => Effect::Blocks(Cause::Transform),
        Verb::Cli | Verb::Other if has_call => Effect::Blocks(Cause::Unknown),
        Verb::Cli | Verb::Other => Effect::None,
    }
}
