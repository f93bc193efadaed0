//! What the reply to `statistics` tells of an rtpengine's load.

use crate::value::{Value, decode};

/// An rtpengine's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls that run.
    pub sessions: Option<u64>,
    /// Packets since the start.
    pub packets_relayed: Option<u64>,
}

/// Read the reply to `statistics`; `None`: it is none.
#[must_use]
pub fn statistics(reply: &[u8]) -> Option<Statistics> {
    let (_, body) = decode(reply).ok()?;
    let all = body.get("statistics")?;
    let number = |section: &str, key: &str| {
        let value: &Value<'_> = all.get(section)?.get(key)?;
        value.number().and_then(|number| u64::try_from(number).ok())
    };
    Some(Statistics {
        sessions: number("currentstatistics", "sessionstotal"),
        packets_relayed: number("totalstatistics", "relayedpackets"),
    })
}
