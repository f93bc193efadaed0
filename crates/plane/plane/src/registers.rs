//! The registers in which a switch keeps sequence numbers of conferences (docs/p4.md): their names, sizes, and initial values before a
//! track or a sequence state is assigned.

use crate::error::PlaneError;
use crate::rows::{self, Change, TableWrite, Value};
use bytes::Bytes;
use shunt_bfrt::schema::{Schema, Table};
use shunt_conference::membership::TARGETS;
use shunt_conference::tables::Limits;
use std::sync::Arc;

/// S-LM's registers of a receiver, and their values before its first packet.
const S_LM: [(&str, u64); 3] = [("Egress.high", 0), ("Egress.offset", 0), ("Egress.open", 0)];
/// S-LR's registers of a receiver, and their values before its first packet. A receiver starts at the target that forwards all layers,
/// because those numbers are the sender's own. In the numbers of another target it could get a number twice.
const S_LR: [(&str, u64); 3] = [("Egress.target", TARGETS as u64), ("Egress.base", 0), ("Egress.floor", 0)];
/// Parts of the names of S-LR's registers of a stream. Zeros stand for a stream without packets.
const TRACKS: &str = ".Ingress.pipeline.conference.tracks.";

/// A register with `rows` rows for each number, and their value before the first packet.
#[derive(Clone, Debug)]
struct Word {
    table: Arc<Table>,
    rows: usize,
    start: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    tracks: Vec<Word>,
    sequence_states: Vec<Word>,
    /// Whether the target has all registers of a receiver.
    pub(crate) sequence_state_registers: bool,
}

impl Registers {
    pub(crate) fn new(schema: &Schema) -> Self {
        let tracks: Vec<&Arc<Table>> = schema
            .tables
            .iter()
            .filter(|table| table.table_type == "Register" && table.name.contains(TRACKS))
            .collect();
        // The smallest registers have one row for each track.
        let count = tracks.iter().map(|table| table.size).min().unwrap_or(1).max(1);
        let starts = if tracks.is_empty() { S_LM } else { S_LR };
        let sequence_states: Vec<Word> = starts
            .into_iter()
            .filter_map(|(name, start)| {
                let table = Arc::clone(schema.table(name)?);
                Some(Word { table, rows: 1, start })
            })
            .collect();
        Self {
            tracks: tracks
                .into_iter()
                .map(|table| Word {
                    rows: table.size / count,
                    table: Arc::clone(table),
                    start: 0,
                })
                .collect(),
            sequence_state_registers: sequence_states.len() == starts.len(),
            sequence_states,
        }
    }

    /// Returns whether the target keeps numbers in registers, as a switch does.
    pub(crate) fn exist(&self) -> bool {
        !self.tracks.is_empty() || !self.sequence_states.is_empty()
    }

    /// Returns the number of usable rows. If not all numbers have a row of their own, row 0 is unused.
    pub(crate) fn limits(&self) -> Limits {
        let most = Limits::default();
        let room = |words: &[Word], most: u32| {
            let found = words.iter().map(|word| word.table.size / word.rows.max(1)).min();
            match found.and_then(|found| u32::try_from(found).ok()) {
                Some(found) if found < most => found.saturating_sub(1),
                _ => most,
            }
        };
        Limits {
            tracks: room(&self.tracks, most.tracks),
            sequence_states: room(&self.sequence_states, most.sequence_states),
            ..most
        }
    }

    /// Returns updates after which the next packet of a track is its first.
    pub(crate) fn clear_track(&self, schema: &Schema, track: u32) -> Result<Vec<Bytes>, PlaneError> {
        clear(schema, &self.tracks, track)
    }

    /// Returns updates after which the next packet of a sequence state is its first.
    pub(crate) fn clear_sequence_state(&self, schema: &Schema, sequence_state: u32) -> Result<Vec<Bytes>, PlaneError> {
        clear(schema, &self.sequence_states, sequence_state)
    }
}

fn clear(schema: &Schema, words: &[Word], number: u32) -> Result<Vec<Bytes>, PlaneError> {
    let mut updates = Vec::new();
    for word in words {
        let index = word.table.key.named("$REGISTER_INDEX")?;
        let first = (number as usize * word.rows) % word.table.size.max(1);
        for row in first..first + word.rows {
            let write = TableWrite {
                table: word.table.name.clone(),
                change: Change::Insert,
                key: vec![(index.name.clone(), Value::Number(row as u64))],
                action: None,
                data: word
                    .table
                    .data
                    .iter()
                    .map(|field| (field.name.clone(), Value::Number(word.start)))
                    .collect(),
            };
            updates.push(rows::encode(schema, &write)?);
        }
    }
    Ok(updates)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn registers(program: &str) -> (Schema, Registers) {
        let schema = Schema::parse(&[program, r#"{"tables": []}"#]).unwrap();
        let registers = Registers::new(&schema);
        (schema, registers)
    }

    #[test]
    fn a_switch_with_s_lm_has_words_of_receivers_only() {
        let (schema, registers) = registers(include_str!("../../../../p4/generated/conference.tofino2.bf-rt.json"));
        assert!(registers.exist() && registers.sequence_state_registers);
        assert_eq!(registers.limits(), Limits::default());
        assert!(registers.clear_track(&schema, 3).unwrap().is_empty());
        assert_eq!(registers.clear_sequence_state(&schema, 70_000).unwrap().len(), 3, "modulo the rows");
    }

    #[test]
    fn a_switch_with_s_lr_has_57_words_of_a_track() {
        let (schema, registers) = registers(include_str!("../../../../p4/generated/conference-lr.tofino2.bf-rt.json"));
        assert_eq!(registers.limits().tracks, 8_191, "row 0 belongs to nobody");
        assert_eq!(registers.clear_track(&schema, 8_191).unwrap().len(), 57);
        assert_eq!(registers.clear_sequence_state(&schema, 1).unwrap().len(), 3);
    }

    #[test]
    fn a_program_without_conferences_has_none() {
        let (_, registers) = registers(include_str!("../../../../p4/generated/relay.tofino2.bf-rt.json"));
        assert!(!registers.exist() && !registers.sequence_state_registers);
        assert_eq!(registers.limits(), Limits::default());
    }
}
