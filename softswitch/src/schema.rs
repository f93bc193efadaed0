//! The served schema: the program's tables (relay.json, conference.json) and the target's own (fixed.json).

use serde_json::Value;
use shunt_bfrt::schema::{Schema, SchemaError};

const RELAY: &str = include_str!("../schema/relay.json");
const CONFERENCE: &str = include_str!("../schema/conference.json");
const FIXED: &str = include_str!("../schema/fixed.json");

/// The schema as objects, and as the two documents that clients fetch.
pub struct Served {
    pub schema: Schema,
    pub program_json: String,
    pub fixed_json: String,
}

/// Sizes of conference tables.
#[derive(Clone, Copy, Debug)]
pub struct ConferenceSizes {
    pub streams: usize,
    pub layers: usize,
    pub copies: usize,
    pub nodes: usize,
}

fn parse(text: &str) -> Result<Value, SchemaError> {
    serde_json::from_str(text).map_err(|error| SchemaError(error.to_string()))
}

fn set_sizes(document: &mut Value, sizes: &[(&str, usize)]) {
    for table in document["tables"].as_array_mut().into_iter().flatten() {
        let size = sizes.iter().find(|(name, _)| table["name"] == *name);
        if let Some((_, size)) = size {
            table["size"] = (*size).into();
        }
    }
}

/// Makes the schema of a data plane with this many relay entries; without conferences their tables are omitted.
///
/// # Errors
/// The documents are invalid.
pub fn serve(capacity: usize, conference: Option<ConferenceSizes>) -> Result<Served, SchemaError> {
    let (mut program, mut fixed) = (parse(RELAY)?, parse(FIXED)?);
    let mut sizes = vec![
        ("pipe.Ingress.relay", capacity),
        ("pipe.Ingress.relay6", capacity),
        ("softswitch.quality", capacity),
        ("softswitch.quality6", capacity),
    ];
    if let Some(conference) = conference {
        for part in ["tables", "learn_filters"] {
            let mut more = parse(CONFERENCE)?;
            let more = more[part].as_array_mut().map(std::mem::take).unwrap_or_default();
            if let Some(all) = program[part].as_array_mut() {
                all.extend(more);
            }
        }
        for name in [
            "pipe.Ingress.conference",
            "pipe.Ingress.conference6",
            "softswitch.reception",
            "softswitch.reception6",
        ] {
            sizes.push((name, conference.streams));
        }
        sizes.extend([
            ("pipe.Ingress.layer", conference.layers),
            ("pipe.Egress.copy", conference.copies),
            ("$pre.node", conference.nodes),
        ]);
    }
    set_sizes(&mut program, &sizes);
    set_sizes(&mut fixed, &sizes);
    let (program_json, fixed_json) = (program.to_string(), fixed.to_string());
    Ok(Served {
        schema: Schema::parse(&[&program_json, &fixed_json])?,
        program_json,
        fixed_json,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_announce_the_sizes_that_they_have() {
        let sizes = ConferenceSizes {
            streams: 5,
            layers: 6,
            copies: 7,
            nodes: 8,
        };
        let served = serve(77, Some(sizes)).unwrap_or_else(|error| panic!("{error}"));
        let size = |name: &str| served.schema.table(name).map(|table| table.size);
        assert_eq!(
            (size("relay"), size("quality6"), size("conference"), size("copy")),
            (Some(77), Some(77), Some(5), Some(7))
        );
        assert_eq!((size("layer"), size("$pre.node"), size("reception6")), (Some(6), Some(8), Some(5)));
        let served = serve(77, None).unwrap_or_else(|error| panic!("{error}"));
        assert!(served.schema.table("conference").is_none() && served.schema.learn("learn6").is_some());
    }
}
