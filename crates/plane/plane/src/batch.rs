//! One batch: reads the final counters of deleted entries, writes, and repeats writes that may still succeed.

use crate::admission::Change;
use crate::queue::Job;
use crate::row::TableRow;
use crate::tables::Tables;
use bytes::{Bytes, BytesMut};
use shunt_bfrt_client::{CallError, Outcome as Answer, Session, UpdateError};
use shunt_calls::{Counters, Operation, Outcome, Reading};
use shunt_net::FiveTuple;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deadline of one Write request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Deadline of a batch, from its first write on.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a delete waits for the final counters.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(100);
/// Most repetitions.
const ROUNDS: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Codes of google.rpc.Code.
const NOT_FOUND: i32 = 5;
const EXISTS: i32 = 6;
const NO_SPACE: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;

/// A write and its state.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) job: Job,
    /// The operation to send: an insert becomes a modify if the entry exists, and a modify an insert if it does not.
    operation: Operation,
    pub(crate) result: Option<(Outcome, Option<Arc<str>>)>,
    pub(crate) counters: Option<Counters>,
}

impl Item {
    pub(crate) fn new(job: Job) -> Self {
        Self {
            operation: job.operation,
            job,
            result: None,
            counters: None,
        }
    }

    pub(crate) fn finish(&mut self, outcome: Outcome, detail: impl Into<Option<Arc<str>>>) {
        self.result.get_or_insert((outcome, detail.into()));
    }

    fn encode(&self, tables: &Tables, arena: &mut BytesMut) -> Result<Bytes, String> {
        let key = self.job.key();
        let table = tables
            .relay_of(&key)
            .ok_or_else(|| format!("the data plane has no relay table for {key}"))?;
        let placed = match &self.operation {
            Operation::Insert(entry) => table.place(arena, entry, false),
            Operation::Modify(entry) => table.place(arena, entry, true),
            Operation::Delete(key) => Some(table.delete(arena, key)),
        };
        placed.ok_or_else(|| format!("{} has no action that sends {key} on as wanted", table.name))
    }

    /// Evaluates an answer. A write that has no result afterwards is repeated.
    fn settle(&mut self, answer: Answer) -> bool {
        let error = match answer {
            Ok(()) => {
                self.finish(Outcome::Done, None);
                return false;
            }
            Err(error) => error,
        };
        match (error.code, self.operation) {
            (EXISTS, Operation::Insert(entry)) => self.operation = Operation::Modify(entry),
            (NOT_FOUND, Operation::Modify(entry)) => self.operation = Operation::Insert(entry),
            (NOT_FOUND, Operation::Delete(_)) => self.finish(Outcome::Done, None),
            (FAILED_PRECONDITION, _) => self.finish(Outcome::HostPolicy, Some(error.message.into())),
            (NO_SPACE, _) => self.finish(Outcome::TableFull, Some(error.message.into())),
            _ if error.is_temporary() => return true,
            _ => self.finish(Outcome::Rejected, Some(error.message.into())),
        }
        false
    }
}

/// Writes to the relay tables, and the source filter rows sent with them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    pub(crate) rows: Vec<(Change, Bytes)>,
    /// Results of the rows; `None` without an answer.
    pub(crate) answers: Vec<Option<Answer>>,
    /// Number of repetitions.
    pub(crate) retries: u32,
}

impl Batch {
    /// Completes all writes in bounded time.
    pub(crate) async fn carry_out(mut self, session: Session, tables: Arc<Tables>) -> Self {
        self.read_final_counters(&session, &tables).await;
        let give_up = Instant::now() + PATIENCE;
        let mut reason = "the data plane is busy".to_owned();
        for round in 0..=ROUNDS {
            let (sent, updates) = self.encode(&tables);
            if updates.is_empty() {
                return self;
            }
            self.retries = round;
            let busy = match session.write(updates, WRITE_TIMEOUT).await {
                Ok(answers) => self.settle(&sent, answers),
                Err(CallError::Refused(text)) => {
                    self.refuse(&text);
                    return self;
                }
                Err(CallError::Unavailable(text)) => {
                    reason = text;
                    true
                }
            };
            if session.is_over() || Instant::now() >= give_up {
                break;
            }
            if busy {
                tokio::time::sleep(RETRY_DELAY * 2_u32.pow(round)).await;
            }
        }
        self.give_up(&session, &reason);
        self
    }

    /// Encodes the writes that have no result yet, with their positions.
    fn encode(&mut self, tables: &Tables) -> (Vec<usize>, Vec<Bytes>) {
        let mut arena = BytesMut::with_capacity(self.items.len() * 160);
        let (mut sent, mut updates) = (
            Vec::with_capacity(self.items.len()),
            Vec::with_capacity(self.items.len() + self.rows.len()),
        );
        for (place, item) in self.items.iter_mut().enumerate().filter(|(_, item)| item.result.is_none()) {
            match item.encode(tables, &mut arena) {
                Ok(update) => {
                    sent.push(place);
                    updates.push(update);
                }
                Err(text) => item.finish(Outcome::Rejected, Some(text.into())),
            }
        }
        if self.answers.is_empty() {
            updates.extend(self.rows.iter().map(|(_, update)| update.clone()));
        }
        (sent, updates)
    }

    /// Returns whether to pause before the next request.
    fn settle(&mut self, sent: &[usize], answers: Vec<Answer>) -> bool {
        let mut answers = answers.into_iter();
        let mut busy = false;
        for place in sent {
            if let (Some(item), Some(answer)) = (self.items.get_mut(*place), answers.next()) {
                busy |= item.settle(answer);
            }
        }
        if self.answers.is_empty() {
            self.answers = answers.map(Some).collect();
        }
        busy
    }

    fn refuse(&mut self, text: &str) {
        let detail: Arc<str> = text.into();
        for item in &mut self.items {
            item.finish(Outcome::Rejected, Some(Arc::clone(&detail)));
        }
        let error = UpdateError {
            code: 0,
            message: text.to_owned(),
        };
        self.answers.resize(self.rows.len(), Some(Err(error)));
    }

    /// Marks writes without an answer, which may or may not have been executed. Only the comparison in the next session tells.
    fn give_up(&mut self, session: &Session, reason: &str) {
        let detail: Arc<str> = reason.into();
        let unknown = self.items.iter().filter(|item| item.result.is_none()).count();
        for item in &mut self.items {
            item.finish(Outcome::Unavailable, Some(Arc::clone(&detail)));
        }
        self.answers.resize(self.rows.len(), None);
        if unknown > 0 && !session.is_over() {
            session.give_up(&format!("{unknown} writes had no answer in {PATIENCE:?}: {reason}"));
        }
    }

    /// Reads the counters of all entries to be deleted in one request. Without an answer in time they stay unknown.
    async fn read_final_counters(&mut self, session: &Session, tables: &Tables) {
        let mut arena = BytesMut::new();
        let mut places = HashMap::new();
        let mut requests = Vec::new();
        for (place, item) in self.items.iter().enumerate() {
            if let Operation::Delete(key) = item.operation
                && let Some(table) = tables.counting(key.is_v6())
            {
                requests.push(table.request(&mut arena, &key));
                places.insert(key, place);
            }
        }
        if requests.is_empty() {
            return;
        }
        let found = match session.read_encoded(requests, COUNTERS_TIMEOUT).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!("final counters of {} entries are not known: {error}", places.len());
                return;
            }
        };
        let mut found: Vec<(FiveTuple, Counters)> = found.iter().filter_map(|entity| counters_of(tables, entity)).collect();
        if let Some(samples) = &tables.samples
            && let Err(error) = samples.add_losses(session, &mut found, COUNTERS_TIMEOUT).await
        {
            tracing::debug!("final losses of {} entries are not known: {error}", found.len());
        }
        for (key, counters) in found {
            if let Some(item) = places.get(&key).and_then(|place| self.items.get_mut(*place)) {
                item.counters = Some(counters);
            }
        }
    }
}

/// Encodes an `Entity` of a table with counters.
pub(crate) fn reading_of(tables: &Tables, entity: &[u8]) -> Option<Reading> {
    tables.reading(&TableRow::decode(entity).ok()??)
}

/// Decodes key and counters of an `Entity`.
pub(crate) fn counters_of(tables: &Tables, entity: &[u8]) -> Option<(FiveTuple, Counters)> {
    reading_of(tables, entity).map(|reading| (reading.key, reading.counters))
}
