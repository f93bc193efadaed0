//! The holder of the lease, as the lease's text describes it.

use serde::{Deserialize, Serialize};

/// An agent's description of itself in the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Unique for each start of the agent.
    pub id: String,
    /// Shown to people.
    pub name: String,
    /// Where the other agents of the group forward commands to.
    pub control: String,
    /// The same for NG; empty if the agent does not serve it.
    #[serde(default)]
    pub ng: String,
    /// Identifies the kernel and the process id namespace of `pid`.
    pub host: String,
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot. Together with `pid` it identifies the process uniquely.
    pub started: u64,
}

impl Holder {
    /// The text of a lease with this token.
    #[must_use]
    pub fn text(&self, token: u64) -> String {
        let mut value = serde_json::json!(self);
        value["token"] = token.into();
        value.to_string()
    }

    /// Reads a lease. `None`: the text is not a lease.
    #[must_use]
    pub fn read(text: &str) -> Option<(Self, u64)> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let token = value.get("token")?.as_u64()?;
        Some((serde_json::from_value(value).ok()?, token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let holder = Holder {
            id: "a1".into(),
            name: "edge-1".into(),
            control: "udp:10.0.0.1:22221".into(),
            ng: "udp:10.0.0.1:22223".into(),
            host: "boot pid:[4026531836]".into(),
            pid: 17,
            started: 4711,
        };
        assert_eq!(Holder::read(&holder.text(9)), Some((holder.clone(), 9)));
        for wrong in ["", "7", "{}", r#"{"token": 1}"#, &serde_json::json!(holder).to_string()] {
            assert_eq!(Holder::read(wrong), None, "{wrong}");
        }
    }
}
