//! The capability dates of VF, and the keep-alive that a relay allows.
//!
//! Meanings up to 20230424 are rtpproxy's own; those of later dates were measured with rtpproxy 2.2.1 and 3.2.

pub const BASIC: u32 = 20_040_107;
pub const MULTIPLE_STREAMS: u32 = 20_050_322;
pub const VERSION_PARAMETER: u32 = 20_060_704;
pub const RESIZE: u32 = 20_071_116;
pub const COPY: u32 = 20_071_218;
pub const QUERY: u32 = 20_080_403;
pub const CODECS: u32 = 20_081_102;
pub const NOTIFY: u32 = 20_081_224;
pub const AUTOBRIDGE: u32 = 20_090_810;
pub const LOAD: u32 = 20_140_323;
pub const CONNECT_TIME: u32 = 20_140_617;
pub const COUNTERS: u32 = 20_141_004;
pub const NEW_PORT: u32 = 20_150_330;
pub const RTPA_COUNTERS: u32 = 20_150_420;
pub const NOTIFY_SELF: u32 = 20_150_617;
pub const TTL_FLAG: u32 = 20_170_313;
pub const SUBCOMMANDS: u32 = 20_191_015;
pub const STOP_RECORDING: u32 = 20_200_226;
pub const TTL_MODIFIER: u32 = 20_210_524;
pub const NLOST_COUNTER: u32 = 20_230_205;
pub const FUSED_DELETE: u32 = 20_230_314;
pub const IPI_COUNTERS: u32 = 20_230_424;
pub const TTL_SUBCOMMAND: u32 = 20_251_015;
pub const OFFER_AND_ANSWER: u32 = 20_260_308;
/// Of shunt-relay alone: [`crate::listing`].
pub const SESSION_LISTING: u32 = 20_261_124;

/// Each date, with the ability of a relay that answers VF with 1.
pub const MEANINGS: [(u32, &str); 25] = [
    (BASIC, "basic protocol: U L D V"),
    (MULTIPLE_STREAMS, "several media in one call (tag;N), music on hold (P, S)"),
    (VERSION_PARAMETER, "parameter in the V command"),
    (RESIZE, "re-packetization, modifier Z"),
    (COPY, "copying of a stream, command C"),
    (QUERY, "statistics of a session, command Q"),
    (CODECS, "codec list in U and L, modifier c"),
    (
        NOTIFY,
        "time-out notification, notify arguments of U (only if the relay was started with -n)",
    ),
    (AUTOBRIDGE, "automatic bridging, modifier R"),
    (LOAD, "load in the reply to I"),
    (CONNECT_TIME, "anchoring of the connect time"),
    (COUNTERS, "counters by name, commands G and Q"),
    (NEW_PORT, "a new port for a leg, modifier N"),
    (RTPA_COUNTERS, "sequence tracking, counters rtpa_*"),
    (NOTIFY_SELF, "%%CC_SELF%% as the host of a notify socket"),
    (TTL_FLAG, "session time-out as the modifier t of OpenSIPS (no rtpproxy up to 3.2)"),
    (SUBCOMMANDS, "sub-commands after &&"),
    (STOP_RECORDING, "command N stops a recording"),
    (TTL_MODIFIER, "session time-out as `&& T<seconds>` on U and L (rtpproxy 2.2.1)"),
    (NLOST_COUNTER, "counter rtpa_nlost"),
    (FUSED_DELETE, "G fused with D"),
    (IPI_COUNTERS, "counters longest_ipi, rtpa_jlast, rtpa_jmax, rtpa_javg"),
    (TTL_SUBCOMMAND, "session time-out as `&& S ttl=<seconds>`, also on Q (rtpproxy 3.2)"),
    (OFFER_AND_ANSWER, "offer and answer in one command, `U … && L …`"),
    (SESSION_LISTING, "list of sessions, command Is (shunt-relay)"),
];

/// The dates that OpenSIPS 4.1 queries, in its order. It uses no relay without the first.
pub const OPENSIPS_HANDSHAKE: [u32; 11] = [
    MULTIPLE_STREAMS,
    RESIZE,
    CODECS,
    AUTOBRIDGE,
    NOTIFY,
    QUERY,
    NOTIFY_SELF,
    RTPA_COUNTERS,
    TTL_FLAG,
    COPY,
    SUBCOMMANDS,
];
/// The dates that Kamailio 5.6 queries.
pub const KAMAILIO_HANDSHAKE: [u32; 3] = [MULTIPLE_STREAMS, RESIZE, CODECS];
/// The dates that a proxy queries at its relay.
pub const AGENT_HANDSHAKE: [u32; 5] = [TTL_SUBCOMMAND, TTL_MODIFIER, QUERY, SUBCOMMANDS, NOTIFY];

/// How to keep the session of an offloaded stream alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// `Q … && S ttl=N`: no side effects on the session.
    TtlSubcommand,
    /// `L … - 0 … && TN`.
    TtlModifier,
    /// `L … - 0 …`, more often than the relay's time-out.
    Lookup,
}

/// The best keep-alive of a relay. `has` names the dates that it answered with 1; an unqueried date counts as missing.
pub fn keepalive(has: impl Fn(u32) -> bool) -> KeepAlive {
    if has(TTL_SUBCOMMAND) {
        KeepAlive::TtlSubcommand
    } else if has(TTL_MODIFIER) {
        KeepAlive::TtlModifier
    } else {
        KeepAlive::Lookup
    }
}

/// Whether Q is safe. rtpengine answers Q but corrupts the call's lock; it denies Q's date.
pub fn may_query(has: impl Fn(u32) -> bool) -> bool {
    has(QUERY)
}
