//! Ranges of UDP ports.

use std::str::FromStr;

/// UDP ports, `FIRST-LAST`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').ok_or_else(|| format!("{text} is not FIRST-LAST"))?;
        let port = |text: &str| text.trim().parse().map_err(|_| format!("{text} is not a port"));
        Ok(Self {
            first: port(first)?,
            last: port(last)?,
        })
    }
}
