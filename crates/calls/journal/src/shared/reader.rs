//! Reads the rows of another agent of the group over a separate connection: in pieces, and on request by Call-ID and by relay port.

use super::SharedSettings;
use super::link::{Link, LinkError};
use super::rows::{self, Found};
use crate::change::{Change, Queue};
use crate::journal::{Event, Shared};
use crate::reader::{Reader, Request, parse_row};
use shunt_calls::Row;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;

/// Rows of one piece, and of one lookup.
const PIECE_ROWS: usize = 200;
const LOOKUP_ROWS: usize = 10_000;
/// Tries of a piece. Unread pieces are read from the beginning once Redis answers again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// The reading thread.
pub(crate) struct Opened {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
}

impl Opened {
    /// Starts it, and notifies the agent that there are rows to restore.
    pub(crate) fn start(settings: SharedSettings, shared: Arc<Shared>, events: UnboundedSender<Event>) -> io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let worker = Worker {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            link: Link::new(settings),
            shared,
            events,
            requests: requests.clone(),
            after: Some(Vec::new()),
            is_cut_off: false,
        };
        let thread = thread::Builder::new()
            .name("journal-reader".into())
            .spawn(move || worker.run(&received))?;
        Ok(Self { requests, thread })
    }

    /// Ends it, even if a [`Reader`] exists.
    pub(crate) fn stop(self) {
        let _ = self.requests.send(Request::Stop);
        let _ = self.thread.join();
    }
}

struct Worker {
    runtime: Runtime,
    link: Link,
    shared: Arc<Shared>,
    events: UnboundedSender<Event>,
    requests: Sender<Request>,
    /// The field behind which the next piece begins; `None`: all was read.
    after: Option<Vec<u8>>,
    /// Pieces could not be read.
    is_cut_off: bool,
}

impl Worker {
    fn run(mut self, requests: &Receiver<Request>) {
        self.offer();
        loop {
            let request = match requests.recv_timeout(PAUSE) {
                Ok(request) => request,
                Err(RecvTimeoutError::Timeout) => {
                    self.look_again();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // The requester may have given up.
            match request {
                Request::Count(answer) => drop(answer.send(self.runtime.block_on(rows::count(&mut self.link)).unwrap_or_default())),
                Request::Piece(answer) => drop(answer.send(self.piece())),
                Request::Call(call_id, answer) => {
                    let found = self.runtime.block_on(rows::of_call(&mut self.link, &call_id, LOOKUP_ROWS));
                    drop(answer.send(self.lookup(found)));
                }
                Request::Port(port, answer) => {
                    let found = self.runtime.block_on(rows::of_port(&mut self.link, port, LOOKUP_ROWS));
                    drop(answer.send(self.lookup(found)));
                }
                Request::Documents(answer) => {
                    let found = self.runtime.block_on(rows::documents(&mut self.link));
                    drop(answer.send(found.inspect_err(|error| self.say(error)).ok()));
                }
                Request::Copy(_) => {}
                Request::Stop => return,
            }
        }
    }

    fn offer(&self) {
        let reader = Reader {
            requests: self.requests.clone(),
        };
        // A stopping agent does not listen any more.
        let _ = self.events.send(Event::Opened(reader));
    }

    /// Unread pieces are read again from the beginning once Redis answers.
    fn look_again(&mut self) {
        if self.is_cut_off && self.runtime.block_on(rows::count(&mut self.link)).is_ok() {
            self.is_cut_off = false;
            self.after = Some(Vec::new());
            self.offer();
        }
    }

    fn piece(&mut self) -> Option<Vec<Row>> {
        let mut tries = 0;
        loop {
            let after = self.after.clone()?;
            match self.runtime.block_on(rows::piece(&mut self.link, &after, PIECE_ROWS)) {
                Ok(None) => self.after = None,
                Ok(Some((found, last))) => {
                    self.after = Some(last);
                    let rows = self.parse(found);
                    if !rows.is_empty() {
                        return Some(rows);
                    }
                }
                Err(error) if tries + 1 < TRIES => {
                    tries += 1;
                    self.say(&error);
                }
                Err(error) => {
                    self.say(&error);
                    (self.is_cut_off, self.after) = (true, None);
                }
            }
        }
    }

    fn lookup(&self, found: Result<Vec<Found>, LinkError>) -> Vec<Row> {
        match found {
            Ok(found) => self.parse(found),
            Err(error) => {
                tracing::warn!("journal {}: rows are not found: {error}", self.link.settings.name());
                Vec::new()
            }
        }
    }

    fn say(&self, error: &LinkError) {
        tracing::error!(
            "journal {}: {error}: rows that are not read yet are restored once it answers",
            self.link.settings.name()
        );
    }

    fn parse(&self, found: Vec<Found>) -> Vec<Row> {
        let read = |(field, row): Found| {
            let Some(key) = rows::key_of(&field) else {
                tracing::error!("journal: a row is passed over: its key cannot be read");
                return None;
            };
            match parse_row(key, &row) {
                Ok(row) => Some(row),
                Err((key, reason)) => {
                    if let Some(key) = key {
                        tracing::error!(call_id = %key.call_id.0.escape_ascii(), "journal: a row cannot be read and is set aside: {reason}");
                        self.shared.change(|queue: &mut Queue| queue.give(key, Change::SetAside(reason)));
                    }
                    None
                }
            }
        };
        found.into_iter().filter_map(read).collect()
    }
}
