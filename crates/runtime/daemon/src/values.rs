//! Values of the configuration that JSON has as text or as a fraction, for `#[serde(deserialize_with = …)]`.

use serde::{Deserialize, Deserializer, de::Error as _};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// A value that is read from a text.
///
/// # Errors
/// The text is none.
pub fn text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// A list of such values.
///
/// # Errors
/// One of the texts is none.
pub fn texts<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

/// Seconds, with a fraction.
///
/// # Errors
/// A negative number, or one that is too large.
pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}
