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

/// Whom of a call a command is about.
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
        use Verb::{
            BlockDtmf, BlockMedia, PauseRecording, SilenceMedia, StartForwarding, StartRecording, StopForwarding, StopRecording,
            UnblockDtmf, UnblockMedia, UnsilenceMedia,
        };
        let verb = command.verb;
        if command.options.all != All::None {
            return Self::Everyone;
        }
        // rtpengine records whole calls.
        if matches!(verb, StartRecording | StopRecording | PauseRecording) {
            return Self::Call;
        }
        let directional = matches!(
            verb,
            BlockDtmf | UnblockDtmf | BlockMedia | UnblockMedia | SilenceMedia | UnsilenceMedia | StartForwarding | StopForwarding
        );
        let others = command.to_tag.is_some() || command.label.is_some() || command.to_label.is_some() || command.address.is_some();
        let tag = command.from_tag.is_some() && (!directional || command.options.directional);
        if others || tag || command.via_branch.is_some() || !command.from_tags.is_empty() {
            Self::Parties
        } else {
            Self::Call
        }
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
