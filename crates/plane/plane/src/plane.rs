//! The handle: submits that never fail, and questions.

use crate::conference;
use crate::engine::{Command, Engine};
use crate::error::PlaneError;
use crate::event::{Event, Facts};
use crate::questions::{self, Trace};
use crate::routes::{self, Routes};
use crate::rows::{self, Row, TableWrite};
use crate::settings::Settings;
use crate::statistics::{Counts, Statistics};
use crate::tables::Tables;
use shunt_bfrt_client::{Client, Session, UpdateError};
use shunt_calls::{Counters, Operation, Reading, RelayEntry, WriteId};
use shunt_conference::diff::Step;
use shunt_conference::rows::{Counted, Data, Key};
use shunt_conference::tables::Offer;
use shunt_latch::Found;
use shunt_net::{Endpoint, FiveTuple};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Capacity of the event channel. When it is full, the plane waits, and notices of the data plane are lost.
const EVENTS: usize = 1024;
const ROWS_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows per Write request. Small requests keep the session's liveness timer fed, and replication rows cost the data plane more than relay
/// entries.
const ROWS_AT_ONCE: usize = 100;

/// A usable session.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) session: Session,
    pub(crate) tables: Arc<Tables>,
    pub(crate) facts: Arc<Facts>,
}

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) counts: Counts,
}

/// The only writer of the data plane's tables. Clones share it. It ends with the last clone and leaves the data plane unchanged.
#[derive(Clone)]
pub struct Plane {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    link: watch::Receiver<Result<Link, String>>,
}

impl Plane {
    /// Connects in the background and retries without limit. Needs a tokio runtime.
    #[must_use]
    pub fn start(settings: Settings) -> (Self, mpsc::Receiver<Event>) {
        let (client, client_events) = Client::start_behind(settings.fence.clone(), settings.target.clone());
        let shared = Arc::new(Shared {
            client,
            counts: Counts::default(),
        });
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (events, event_receiver) = mpsc::channel(EVENTS);
        let (link, link_receiver) = watch::channel(Err("not yet connected".to_owned()));
        let engine = Engine::new(settings, Arc::clone(&shared), events, link);
        tokio::spawn(engine.run(command_receiver, client_events));
        let plane = Self {
            shared,
            commands,
            link: link_receiver,
        };
        (plane, event_receiver)
    }

    fn submit(&self, command: Command) {
        // The engine ends after all handles, or with the runtime.
        let _ = self.commands.send(command);
    }

    /// Writes to the relay tables; the results come as [`Event::Written`]. Writes of one call are sent together.
    ///
    /// Writes to one relay port are executed in order. A delete is sent at once, others are coalesced for up to 4 ms.
    pub fn write(&self, writes: Vec<(WriteId, Operation)>) {
        if !writes.is_empty() {
            self.submit(Command::Write(writes));
        }
    }

    /// Sets the allowed sources of a relay port (even) and the port above while they have no entry; `None`: all. It stays in force until it
    /// is changed.
    pub fn filter(&self, port: Endpoint, allowed: Option<Arc<[IpAddr]>>) {
        self.submit(Command::Filter(port, allowed));
    }

    /// Adds addresses of a call's party, which are then no unknown sources. Addresses of source filters are added anyway.
    pub fn allow(&self, addresses: Vec<IpAddr>) {
        self.submit(Command::Allow(addresses));
    }

    /// Drops a scanner's packets to ports without an entry, for [`Settings::block_for`].
    pub fn block(&self, found: Found) {
        self.submit(Command::Block(found));
    }

    /// Deletes entries that no call claims.
    pub fn delete_orphans(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::DeleteOrphans(keys));
        }
    }

    /// Reads when entries last matched a packet. The answer is [`Event::IdleTimes`] with one entry for each key. An unavailable data plane
    /// gives no answer.
    pub fn read_idle(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::ReadIdle(keys));
        }
    }

    /// Announces packets of these 5-tuples, which have no entry. Matters for a data plane that stores hashes ([`Event::Collision`]).
    pub fn expect(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::Expect(keys));
        }
    }

    /// Reads the whole table now ([`Event::Table`]).
    pub fn audit(&self) {
        self.submit(Command::Audit);
    }

    fn link(&self) -> Result<Link, PlaneError> {
        self.link.borrow().clone().map_err(PlaneError::Unavailable)
    }

    /// Returns facts about the connected data plane.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`], with the reason.
    pub fn facts(&self) -> Result<Arc<Facts>, PlaneError> {
        Ok(self.link()?.facts)
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.counts.read(self.shared.client.digests_lost())
    }

    /// Reads the counters of these entries since they were installed; missing entries are left out.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn counters(&self, keys: &[FiveTuple]) -> Result<Vec<(FiveTuple, Counters)>, PlaneError> {
        let readings = self.readings(keys).await?;
        Ok(readings.into_iter().map(|reading| (reading.key, reading.counters)).collect())
    }

    /// Reads the counters and the idle time of these entries.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn readings(&self, keys: &[FiveTuple]) -> Result<Vec<Reading>, PlaneError> {
        let link = self.link()?;
        questions::readings(&link.session, &link.tables, keys).await
    }

    /// Reads the counters of all entries. It takes a second or more for a million entries, and blocks no write.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn all_counters(&self) -> Result<Vec<(FiveTuple, Counters)>, PlaneError> {
        let link = self.link()?;
        questions::all_counters(&link.session, &link.tables).await
    }

    /// Reads counters of the whole data plane by name; at least `entries` and `capacity`.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn totals(&self) -> Result<BTreeMap<String, u64>, PlaneError> {
        let link = self.link()?;
        questions::totals(&link.session, &link.tables).await
    }

    /// Reads the interfaces of the data plane, and the mode of the program attached to each now (`native`, `generic`, `none`); `None`: it
    /// does not report them.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn interfaces(&self) -> Result<Option<Vec<(String, String)>>, PlaneError> {
        let link = self.link()?;
        questions::interfaces(&link.session, &link.tables).await
    }

    /// Reads the number of entries in each relay table, and its size.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn usage(&self) -> Result<BTreeMap<String, (u64, u64)>, PlaneError> {
        let link = self.link()?;
        questions::usage(&link.session, &link.tables).await
    }

    /// Asks where the data plane would send a packet.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] if it has no trace, [`PlaneError::Unavailable`] without an answer.
    pub async fn trace(&self, key: FiveTuple) -> Result<Trace, PlaneError> {
        let link = self.link()?;
        questions::trace(&link.session, &link.tables, &key).await
    }

    /// Writes rows of tables other than the relay's, in this order. Every row is tried and has its own result.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] for a write that does not fit the schema; nothing was written then. [`PlaneError::Unavailable`] without an answer: it is unknown which rows were written.
    pub async fn rows(&self, writes: &[TableWrite]) -> Result<Vec<Result<(), UpdateError>>, PlaneError> {
        let link = self.link()?;
        let encoded = writes.iter().map(|write| rows::encode(&link.tables.schema, write));
        let updates = encoded.collect::<Result<Vec<_>, _>>()?;
        let mut answers = Vec::with_capacity(updates.len());
        for updates in updates.chunks(ROWS_AT_ONCE) {
            answers.extend(link.session.write(updates.to_vec(), ROWS_TIMEOUT).await?);
        }
        Ok(answers)
    }

    /// Reads all rows of a table.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] without such a table, [`PlaneError::Unavailable`] without an answer.
    pub async fn read(&self, table: &str) -> Result<Vec<Row>, PlaneError> {
        let link = self.link()?;
        let found = link.tables.schema.table(table);
        let table = found.ok_or_else(|| PlaneError::Schema(format!("the data plane has no table {table}")))?;
        questions::read_table(&link.session, table, questions::ALL_TIMEOUT).await
    }

    /// Returns the size of a table, or `None` if the data plane lacks it.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] while there is no data plane.
    pub fn table_size(&self, table: &str) -> Result<Option<usize>, PlaneError> {
        Ok(self.link()?.tables.schema.table(table).map(|table| table.size))
    }

    /// Returns what the data plane offers to conferences.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] without tables for conferences, [`PlaneError::Unavailable`] while there is no data plane.
    pub fn conference_offer(&self) -> Result<Offer, PlaneError> {
        let link = self.link()?;
        let tables = link.tables.conference.as_ref().ok_or_else(conference::no_tables)?;
        Ok(tables.offer(routes::exist(&link.tables.schema)))
    }

    /// Reads the routes of a switch, as its operator has set them; `None` for a data plane that uses the kernel's routes.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn routes(&self) -> Result<Option<Routes>, PlaneError> {
        let link = self.link()?;
        routes::read(&link.session, &link.tables.schema).await
    }

    /// Returns whether the operator has set up the switch (its MAC addresses); true for a data plane that needs no set-up.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn is_set_up(&self) -> Result<bool, PlaneError> {
        let link = self.link()?;
        routes::is_set_up(&link.session, &link.tables.schema).await
    }

    /// Writes rows of conferences, in this order. Every row is tried and has its own result. Existing rows are modified, and postponed ones
    /// are written again.
    ///
    /// # Errors
    /// As [`Plane::rows`].
    pub async fn write_conferences(&self, steps: &[Step<Key, Data>]) -> Result<Vec<Result<(), UpdateError>>, PlaneError> {
        let link = self.link()?;
        conference::write(&link.session, &link.tables, steps).await
    }

    /// Reads all rows of conferences except relay entries.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] without such rows, [`PlaneError::Unavailable`] without an answer.
    pub async fn conference_rows(&self) -> Result<Vec<(Key, Data)>, PlaneError> {
        let link = self.link()?;
        conference::all(&link.session, &link.tables).await
    }

    /// Reads all relay entries that the agent can have written.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn relay_entries(&self) -> Result<Vec<RelayEntry>, PlaneError> {
        let link = self.link()?;
        Ok(questions::entries(&link.session, &link.tables).await?.0)
    }

    /// Reads the reception of streams (rows of `conference`). `None`: the data plane does not measure it.
    ///
    /// # Errors
    /// As [`Plane::conference_rows`].
    pub async fn reception(&self, keys: &[Key]) -> Result<Option<Vec<(Key, Counters)>>, PlaneError> {
        let link = self.link()?;
        conference::reception(&link.session, &link.tables, keys).await
    }

    /// Reads the counters of rows of `conference` and `layer`: of these, or of all.
    ///
    /// # Errors
    /// As [`Plane::conference_rows`].
    pub async fn conference_counters(&self, keys: Option<&[Key]>) -> Result<Vec<Counted>, PlaneError> {
        let link = self.link()?;
        match keys {
            Some(keys) => conference::counted_of(&link.session, &link.tables, keys).await,
            None => conference::counted(&link.session, &link.tables).await,
        }
    }

    /// Reads the counters of all rows of `copy` in one request, which blocks no write.
    ///
    /// # Errors
    /// As [`Plane::conference_rows`].
    pub async fn copy_counters(&self) -> Result<Vec<Counted>, PlaneError> {
        let link = self.link()?;
        conference::counted_copies(&link.session, &link.tables).await
    }
}
