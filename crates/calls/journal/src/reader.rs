//! Reads the rows of a previous agent: in pieces, and on request by Call-ID and by relay port.
//!
//! A separate thread reads over its own connection, so neither the agent's loop nor the writer waits for it. It also copies the log into
//! the file.

use crate::change::{Change, Queue};
use crate::journal::Shared;
use crate::store::{StoreError, connect, media_column};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params};
use shunt_calls::{Row, RowKey, Text};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

/// Rows and bytes of one piece. Each piece is passed between two threads, which on a busy machine takes longer than reading it.
const PIECE_ROWS: usize = 500;
const PIECE_BYTES: usize = 1 << 20;
/// Rows of one lookup.
const LOOKUP_ROWS: usize = 10_000;
/// Tries of a read that fails for another reason than damage.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

const COLUMNS: &str = "SELECT id, call_id, tag, media, row FROM lines";

/// A document and its key.
pub(crate) type Document = (String, Vec<u8>);

/// Requests to the thread.
#[derive(Debug)]
pub(crate) enum Request {
    Count(oneshot::Sender<u64>),
    Piece(oneshot::Sender<Option<Vec<Row>>>),
    Call(Vec<u8>, oneshot::Sender<Vec<Row>>),
    Port(u16, oneshot::Sender<Vec<Row>>),
    Documents(oneshot::Sender<Option<Vec<Document>>>),
    /// Copy the log into the file; the answer is its number of pages.
    Copy(Arc<AtomicU64>),
    Stop,
}

/// Returns the rows found in a journal. An unreadable row is set aside and logged.
#[derive(Debug)]
pub struct Reader {
    pub(crate) requests: Sender<Request>,
}

impl Reader {
    /// Returns the number of Call-IDs.
    pub async fn count(&self) -> u64 {
        self.ask(Request::Count).await.unwrap_or_default()
    }

    /// Returns the next rows, in pieces of bounded size; `None` at the end.
    pub async fn piece(&self) -> Option<Vec<Row>> {
        self.ask(Request::Piece).await.flatten()
    }

    /// Returns the rows of a Call-ID.
    pub async fn of_call(&self, call_id: &[u8]) -> Vec<Row> {
        let call_id = call_id.to_vec();
        self.ask(|answer| Request::Call(call_id, answer)).await.unwrap_or_default()
    }

    /// Returns the rows for which a relay assigned this port, the one below or the one above, at any address.
    pub async fn of_port(&self, port: u16) -> Vec<Row> {
        self.ask(|answer| Request::Port(port, answer)).await.unwrap_or_default()
    }

    /// Returns the documents other than calls, by name; `None`: they cannot be read now.
    pub async fn documents(&self) -> Option<Vec<(String, Vec<u8>)>> {
        self.ask(Request::Documents).await.flatten()
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).ok()?;
        answered.await.ok()
    }
}

/// The thread of an open file.
pub(crate) struct Opened {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
}

impl Opened {
    /// Opens a connection for reading and starts its thread. `has_pieces`: the content must be read.
    pub(crate) fn start(path: &Path, shared: Arc<Shared>, has_pieces: bool) -> Result<Self, StoreError> {
        let connection = connect(path)?;
        // The file stays open from here on, also if it is moved aside.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        let (requests, received) = mpsc::channel();
        let place = if has_pieces {
            Place::Upwards { after: i64::MIN }
        } else {
            Place::End
        };
        let worker = Worker {
            connection,
            shared,
            place,
            ports: None,
            said: false,
        };
        let thread = thread::Builder::new()
            .name("journal-reader".into())
            .spawn(move || worker.run(&received))?;
        Ok(Self { requests, thread })
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader {
            requests: self.requests.clone(),
        }
    }

    pub(crate) fn request(&self, request: Request) {
        // A thread that panicked has reported it.
        let _ = self.requests.send(request);
    }

    /// Closes the connection, even if a [`Reader`] exists.
    pub(crate) fn stop(self) {
        self.request(Request::Stop);
        let _ = self.thread.join();
    }
}

/// Last row read in pieces.
#[derive(Clone, Copy, Debug)]
enum Place {
    Upwards {
        after: i64,
    },
    /// There is damage beyond `after`, so reading continues from the other end.
    Downwards {
        after: i64,
        before: i64,
    },
    End,
}

struct Worker {
    connection: Connection,
    shared: Arc<Shared>,
    place: Place,
    /// Assigned relay ports with the ids of their rows, sorted, as of the first request; the writer knows later rows.
    ports: Option<Vec<(u16, i64)>>,
    /// A failed lookup was logged.
    said: bool,
}

impl Worker {
    fn run(mut self, requests: &Receiver<Request>) {
        let mut copies = Vec::new();
        for request in requests {
            // The requester may have given up.
            match request {
                Request::Count(answer) => drop(answer.send(self.count())),
                Request::Piece(answer) => drop(answer.send(self.piece())),
                Request::Call(call_id, answer) => drop(answer.send(self.lookup("call_id = ?1", [call_id]))),
                Request::Port(port, answer) => drop(answer.send(self.of_port(port))),
                Request::Documents(answer) => drop(answer.send(Some(Vec::new()))),
                Request::Copy(pages) => copies.push(pages),
                Request::Stop => return,
            }
            // A copy takes as long as the disk, so rows come first.
            if matches!(self.place, Place::End) {
                copies.drain(..).for_each(|pages| self.copy(&pages));
            }
        }
    }

    fn count(&self) -> u64 {
        let counted = self
            .connection
            .query_row("SELECT count(DISTINCT call_id) FROM lines", [], |row| row.get(0));
        counted.ok().and_then(|count: i64| u64::try_from(count).ok()).unwrap_or_default()
    }

    fn piece(&mut self) -> Option<Vec<Row>> {
        let mut tries = 0;
        loop {
            let read = match self.place {
                Place::End => return None,
                Place::Upwards { after } => self.read("id > ?1 ORDER BY id", [after], PIECE_ROWS, |id, last| id > last.unwrap_or(after)),
                Place::Downwards { after, before } => {
                    let which = "id > ?1 AND id < ?2 ORDER BY id DESC";
                    self.read(which, [after, before], PIECE_ROWS, |id, last| {
                        id > after && id < last.unwrap_or(before)
                    })
                }
            };
            self.advance(&read);
            match read.error {
                Some(error) if error.is_damage() => self.pass_damage(&error),
                Some(error) => {
                    tries += 1;
                    if tries >= TRIES {
                        tracing::error!("journal: {error}: rows that are not read yet are not restored");
                        self.place = Place::End;
                    }
                    thread::sleep(PAUSE);
                }
                None if read.last.is_none() => self.place = Place::End,
                None => return Some(read.rows),
            }
            if !read.rows.is_empty() {
                return Some(read.rows);
            }
        }
    }

    fn advance(&mut self, read: &Read) {
        match (&mut self.place, read.last) {
            (Place::Upwards { after }, Some(last)) => *after = last,
            (Place::Downwards { before, .. }, Some(last)) => *before = last,
            _ => {}
        }
    }

    fn pass_damage(&mut self, error: &StoreError) {
        self.place = match self.place {
            Place::Upwards { after } => {
                // Only once: by the turn of the other end the file has been replaced by an undamaged one.
                self.shared.change(|queue: &mut Queue| queue.damage = Some(error.to_string()));
                Place::Downwards { after, before: i64::MAX }
            }
            _ => Place::End,
        };
    }

    /// The file has no index of ports, because an index would cost a page for every written row. Ports are looked up only at a restart.
    fn of_port(&mut self, port: u16) -> Vec<Row> {
        let ports = self.ports.take().unwrap_or_else(|| self.all_ports());
        let from = ports.partition_point(|(other, _)| *other < port.saturating_sub(1));
        let near = ports[from..].iter().take_while(|(other, _)| *other <= port.saturating_add(1));
        let rows = near.take(LOOKUP_ROWS).flat_map(|(_, id)| self.lookup("id = ?1", [id])).collect();
        self.ports = Some(ports);
        rows
    }

    fn all_ports(&mut self) -> Vec<(u16, i64)> {
        let mut ports = Vec::new();
        let read = self
            .connection
            .prepare("SELECT id, caller_port, callee_port FROM lines")
            .and_then(|mut select| {
                let mut found = select.query([])?;
                while let Some(row) = found.next()? {
                    let id = row.get(0)?;
                    for column in [1, 2] {
                        ports.extend(row.get::<_, Option<u16>>(column)?.map(|port| (port, id)));
                    }
                }
                Ok(())
            });
        if let Err(error) = read {
            self.say(&error);
        }
        ports.sort_unstable();
        ports
    }

    fn lookup(&mut self, which: &str, values: impl Params) -> Vec<Row> {
        let read = self.read(which, values, LOOKUP_ROWS, |_, _| true);
        if let Some(error) = &read.error {
            self.say(error);
        }
        read.rows
    }

    fn say(&mut self, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.said, true) {
            tracing::error!("journal: rows are not found: {error}");
        }
    }

    /// `follows`: whether a row of this id can come after the last one. SQLite does not verify the order of a file.
    fn read(&self, which: &str, values: impl Params, most: usize, follows: impl Fn(i64, Option<i64>) -> bool) -> Read {
        let mut read = Read::default();
        if let Err(error) = self.read_into(&mut read, which, values, most, follows) {
            read.error = Some(error);
        }
        read
    }

    fn read_into(
        &self,
        read: &mut Read,
        which: &str,
        values: impl Params,
        most: usize,
        follows: impl Fn(i64, Option<i64>) -> bool,
    ) -> Result<(), StoreError> {
        let mut select = self.connection.prepare_cached(&format!("{COLUMNS} WHERE {which} LIMIT {most}"))?;
        let mut found = select.query(values)?;
        let mut size = 0;
        while let Some(row) = found.next()? {
            let id = row.get(0)?;
            if !follows(id, read.last) {
                return Err(StoreError::Order);
            }
            let json = bytes(row.get_ref(4)?).unwrap_or_default();
            size += json.len();
            match parse(bytes(row.get_ref(1)?), bytes(row.get_ref(2)?), row.get_ref(3)?, json) {
                Ok(row) => read.rows.push(row),
                Err((key, reason)) => self.set_aside(key, reason),
            }
            read.last = Some(id);
            if size >= PIECE_BYTES && most == PIECE_ROWS {
                break;
            }
        }
        Ok(())
    }

    fn set_aside(&self, key: Option<RowKey>, reason: String) {
        let Some(key) = key else {
            tracing::error!("journal: a row is passed over: {reason}");
            return;
        };
        tracing::error!(call_id = %key.call_id.0.escape_ascii(), "journal: a row cannot be read and is set aside: {reason}");
        self.shared.change(|queue: &mut Queue| queue.give(key, Change::SetAside(reason)));
    }

    fn copy(&self, pages: &AtomicU64) {
        let copied = self
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
        match copied {
            Ok(count) => pages.store(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed),
            Err(error) => tracing::warn!("journal: the log is not copied: {error}"),
        }
    }
}

/// Rows of a read, up to an error.
#[derive(Debug, Default)]
struct Read {
    rows: Vec<Row>,
    /// The id of the last row, including bad ones.
    last: Option<i64>,
    error: Option<StoreError>,
}

/// Returns the bytes of a column of any type.
fn bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Some(bytes),
        _ => None,
    }
}

pub(crate) type BadRow = (Option<RowKey>, String);

fn parse(call_id: Option<&[u8]>, tag: Option<&[u8]>, media: ValueRef<'_>, json: &[u8]) -> Result<Row, BadRow> {
    let (Some(call_id), Some(tag), ValueRef::Integer(media)) = (call_id, tag, media) else {
        return Err((None, "its key cannot be read".into()));
    };
    let key = RowKey {
        call_id: Text(call_id.to_vec()),
        tag: Text(tag.to_vec()),
        media: u32::try_from(media).ok(),
    };
    if media != media_column(&key) {
        return Err((Some(key), "its key is another one's".into()));
    }
    parse_row(key, json)
}

/// Returns the row of a key.
pub(crate) fn parse_row(key: RowKey, json: &[u8]) -> Result<Row, BadRow> {
    match serde_json::from_slice::<Row>(json) {
        Err(error) => Err((Some(key), error.to_string())),
        Ok(row) if row.key != key => Err((Some(key), "its key is another one's".into())),
        Ok(row) => Ok(row),
    }
}
