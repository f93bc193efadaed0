//! The commands by name.

/// The command that a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Ping,
    Offer,
    Answer,
    Delete,
    Query,
    List,
    StartRecording,
    StopRecording,
    PauseRecording,
    StartForwarding,
    StopForwarding,
    BlockDtmf,
    UnblockDtmf,
    BlockMedia,
    UnblockMedia,
    SilenceMedia,
    UnsilenceMedia,
    PlayMedia,
    StopMedia,
    PlayDtmf,
    Statistics,
    Publish,
    SubscribeRequest,
    SubscribeAnswer,
    Unsubscribe,
    InjectStart,
    InjectStop,
    Connect,
    Mesh,
    Create,
    CreateAnswer,
    Transform,
    /// A line for rtpengine's command-line interface.
    Cli,
    /// A command that no known version has: a newer rtpengine may know it.
    Other,
}

const NAMES: [(Verb, &str); 33] = [
    (Verb::Ping, "ping"),
    (Verb::Offer, "offer"),
    (Verb::Answer, "answer"),
    (Verb::Delete, "delete"),
    (Verb::Query, "query"),
    (Verb::List, "list"),
    (Verb::StartRecording, "start recording"),
    (Verb::StopRecording, "stop recording"),
    (Verb::PauseRecording, "pause recording"),
    (Verb::StartForwarding, "start forwarding"),
    (Verb::StopForwarding, "stop forwarding"),
    (Verb::BlockDtmf, "block DTMF"),
    (Verb::UnblockDtmf, "unblock DTMF"),
    (Verb::BlockMedia, "block media"),
    (Verb::UnblockMedia, "unblock media"),
    (Verb::SilenceMedia, "silence media"),
    (Verb::UnsilenceMedia, "unsilence media"),
    (Verb::PlayMedia, "play media"),
    (Verb::StopMedia, "stop media"),
    (Verb::PlayDtmf, "play DTMF"),
    (Verb::Statistics, "statistics"),
    (Verb::Publish, "publish"),
    (Verb::SubscribeRequest, "subscribe request"),
    (Verb::SubscribeAnswer, "subscribe answer"),
    (Verb::Unsubscribe, "unsubscribe"),
    (Verb::InjectStart, "inject start"),
    (Verb::InjectStop, "inject stop"),
    (Verb::Connect, "connect"),
    (Verb::Mesh, "mesh"),
    (Verb::Create, "create"),
    (Verb::CreateAnswer, "create answer"),
    (Verb::Transform, "transform"),
    (Verb::Cli, "cli"),
];

impl Verb {
    /// All that have a name.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(|(verb, _)| verb)
    }

    /// By its name, which is case sensitive in rtpengine.
    #[must_use]
    pub fn named(name: &[u8]) -> Self {
        let known = NAMES.iter().find(|(_, known)| known.as_bytes() == name);
        known.map_or(Self::Other, |(verb, _)| *verb)
    }

    /// The name on the wire; nothing for [`Verb::Other`].
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(verb, _)| *verb == self).map_or("", |(_, name)| name)
    }
}
