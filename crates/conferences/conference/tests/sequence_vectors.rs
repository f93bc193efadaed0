//! The vectors that every implementation of sequence rewriting is held against.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use shunt_conference::sequence::{Cadence, LowRetransmission, Options, Outcome, Row, Verdict};

fn row(values: &[Value]) -> Row {
    let number = |at: usize| u16::try_from(values[at].as_u64().unwrap()).unwrap();
    let flag = |at: usize| values[at].as_u64().unwrap() != 0;
    Row {
        sequence: number(0),
        frame: number(1),
        start: flag(2),
        end: flag(3),
        keep: flag(4),
        key: flag(5),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forward => "forward",
        Verdict::Suppress => "suppress",
        Verdict::Late => "late",
        Verdict::Repeated => "repeated",
    }
}

fn accept(case: &Value) -> Box<dyn FnMut(Row) -> Outcome> {
    let cadence = case["cadence"].as_array().map(|pair| Cadence {
        mask: u8::try_from(pair[0].as_u64().unwrap()).unwrap(),
        base: u16::try_from(pair[1].as_u64().unwrap()).unwrap(),
    });
    let options = Options {
        learn: case["learn"].as_bool().unwrap(),
        history: usize::try_from(case["history"].as_u64().unwrap()).unwrap(),
        window: u16::try_from(case["window"].as_u64().unwrap()).unwrap(),
    };
    let mut rewriter = LowRetransmission::new(cadence, options);
    Box::new(move |row| rewriter.accept(row))
}

#[test]
fn every_row_of_every_case_has_its_verdict_and_number() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/vectors/conference/sequence.json"
    ))
    .unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    // The others are of S-LM, which runs on switches alone.
    let cases = file["cases"].as_array().unwrap().iter().filter(|case| case["algorithm"] == "S-LR");
    let cases: Vec<&Value> = cases.collect();
    assert!(cases.len() >= 20, "{} cases", cases.len());
    for case in cases {
        let mut accept = accept(case);
        for (at, values) in case["rows"].as_array().unwrap().iter().enumerate() {
            let values = values.as_array().unwrap();
            let outcome = accept(row(values));
            let expected = (values[6].as_str().unwrap(), values[7].as_u64());
            let found = (word(outcome.verdict), outcome.position.map(u64::from));
            assert_eq!(
                found, expected,
                "{} {} history {}: row {at}",
                case["name"], case["algorithm"], case["history"]
            );
        }
    }
}
