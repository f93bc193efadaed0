//! Records of calls: the results of ended lines are kept until the whole call has ended.

use crate::decision::{Ended, EndedLine};
use crate::ids::Quick;
use shunt_latch::Time;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of ended lines that a running call keeps, the latest ones.
const MOST_LINES: usize = 64;

/// Number of a call. A call whose last entries are being removed keeps it while its Call-ID is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallNumber(u64);

#[derive(Clone, Debug)]
struct Record {
    call: Arc<[u8]>,
    created: Time,
    /// Lines that have not ended.
    open: usize,
    ended: Vec<EndedLine>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    records: HashMap<CallNumber, Record, Quick>,
    last: u64,
}

impl Records {
    /// Begins a call.
    pub(crate) fn begin(&mut self, call: Arc<[u8]>, created: Time) -> CallNumber {
        self.last += 1;
        let number = CallNumber(self.last);
        let record = Record {
            call,
            created,
            open: 0,
            ended: Vec::new(),
        };
        self.records.insert(number, record);
        number
    }

    /// Adds a line to a call.
    pub(crate) fn line_begins(&mut self, number: CallNumber, created: Time) {
        if let Some(record) = self.records.get_mut(&number) {
            record.open += 1;
            record.created = record.created.min(created);
        }
    }

    /// Ends a line. Returns the call if that was its last line.
    pub(crate) fn line_ends(&mut self, number: CallNumber, line: EndedLine) -> Option<Ended> {
        let record = self.records.get_mut(&number)?;
        record.open = record.open.saturating_sub(1);
        let reason = line.reason;
        if record.ended.len() >= MOST_LINES {
            record.ended.remove(0);
        }
        record.ended.push(line);
        if record.open > 0 {
            return None;
        }
        let mut record = self.records.remove(&number)?;
        record.ended.sort_by_key(|line| line.line);
        Some(Ended {
            call: record.call,
            created: record.created,
            reason,
            lines: record.ended,
        })
    }
}
