//! The document that `shunt check-config --json` writes.

use serde::de::DeserializeOwned;
use std::io::Read as _;
use thiserror::Error;

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum DocumentError {
    #[error("{0}")]
    Read(#[from] std::io::Error),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("the configuration was checked and is not valid")]
    Invalid,
}

/// The configuration in a file, or on standard input (`-`).
///
/// # Errors
/// As [`parse`], or the file cannot be read.
pub fn read_document<T: DeserializeOwned>(path: &str) -> Result<T, DocumentError> {
    let mut text = String::new();
    if path == "-" {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(path)?;
    }
    parse(&text)
}

/// The configuration in the document's key `config`, or the configuration alone.
///
/// # Errors
/// It is not JSON, was found invalid, lacks a key, or has a value that is none.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, DocumentError> {
    let mut document: serde_json::Value = serde_json::from_str(text)?;
    if document.get("valid").is_some_and(|valid| valid != true) {
        return Err(DocumentError::Invalid);
    }
    let config = document.get_mut("config").map(serde_json::Value::take).unwrap_or(document);
    Ok(serde_json::from_value(config)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Config {
        number: u8,
    }

    #[test]
    fn a_document_and_a_bare_configuration_are_the_same() {
        let bare: Config = parse(r#"{"number": 3}"#).unwrap();
        let checked: Config = parse(r#"{"valid": true, "errors": [], "config": {"number": 3}}"#).unwrap();
        assert_eq!(bare, checked);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text| parse::<Config>(text).unwrap_err().to_string();
        assert!(said(r#"{"valid": false, "config": null}"#).contains("not valid"));
        assert!(said(r#"{"config": {}}"#).contains("number"));
        assert!(said("{").contains("line 1"));
        let missing = read_document::<Config>("/nowhere/shunt.json").unwrap_err();
        assert!(missing.to_string().contains("No such file"));
    }
}
