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

/// Events that wait for the one who takes them; then the plane waits too, and the data plane's notices are lost.
const EVENTS: usize = 1024;
const ROWS_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows of one write: answers are signs of life, and rows that replicate cost the data plane more than relay entries.
const ROWS_AT_ONCE: usize = 100;

/// A session that can be used.
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

/// The one writer of the data plane's tables. Clones share it; it ends with the last of them, and leaves the data plane as it is.
#[derive(Clone)]
pub struct Plane {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    link: watch::Receiver<Result<Link, String>>,
}

impl Plane {
    /// Connect in the background, for as long as it takes. Needs a tokio runtime.
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
        // The engine ends after all handles, or when the runtime does.
        let _ = self.commands.send(command);
    }

    /// Write to the relay tables; the results come as [`Event::Written`]. Writes that are given together go together.
    ///
    /// Writes to one relay port are carried out in their order. A delete goes at once, others wait up to 4 ms for company.
    pub fn write(&self, writes: Vec<(WriteId, Operation)>) {
        if !writes.is_empty() {
            self.submit(Command::Write(writes));
        }
    }

    /// Who may send to a relay port (even) and the one above while they have no entry; `None`: everybody. Kept in force until it is changed.
    pub fn filter(&self, port: Endpoint, allowed: Option<Arc<[IpAddr]>>) {
        self.submit(Command::Filter(port, allowed));
    }

    /// A party of a call is at these addresses: they are no unknown sources. Addresses that a source filter names are taken note of anyway.
    pub fn allow(&self, addresses: Vec<IpAddr>) {
        self.submit(Command::Allow(addresses));
    }

    /// Drop what a scanner sends to ports without an entry, for [`Settings::block_for`].
    pub fn block(&self, found: Found) {
        self.submit(Command::Block(found));
    }

    /// Delete entries that no call claims.
    pub fn delete_orphans(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::DeleteOrphans(keys));
        }
    }

    /// Read when entries last met a packet. The answer is [`Event::IdleTimes`], of one entry for each key; none comes from a data plane that is
    /// not available.
    pub fn read_idle(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::ReadIdle(keys));
        }
    }

    /// Packets of these 5-tuples may come although they have no entry. Matters to a data plane that stores hashes ([`Event::Collision`]).
    pub fn expect(&self, keys: Vec<FiveTuple>) {
        if !keys.is_empty() {
            self.submit(Command::Expect(keys));
        }
    }

    /// Read the whole table now ([`Event::Table`]).
    pub fn audit(&self) {
        self.submit(Command::Audit);
    }

    fn link(&self) -> Result<Link, PlaneError> {
        self.link.borrow().clone().map_err(PlaneError::Unavailable)
    }

    /// The data plane that is there.
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

    /// What was counted on these entries since they were installed; keys without an entry are left out.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn counters(&self, keys: &[FiveTuple]) -> Result<Vec<(FiveTuple, Counters)>, PlaneError> {
        let readings = self.readings(keys).await?;
        Ok(readings.into_iter().map(|reading| (reading.key, reading.counters)).collect())
    }

    /// The same, with how long each has met no packet.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn readings(&self, keys: &[FiveTuple]) -> Result<Vec<Reading>, PlaneError> {
        let link = self.link()?;
        questions::readings(&link.session, &link.tables, keys).await
    }

    /// What was counted on all entries. Takes a second or more for a million, and holds up nobody.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn all_counters(&self) -> Result<Vec<(FiveTuple, Counters)>, PlaneError> {
        let link = self.link()?;
        questions::all_counters(&link.session, &link.tables).await
    }

    /// Counters of the whole data plane by name; at least `entries` and `capacity`.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn totals(&self) -> Result<BTreeMap<String, u64>, PlaneError> {
        let link = self.link()?;
        questions::totals(&link.session, &link.tables).await
    }

    /// The interfaces that the data plane has, and the mode of the program that is attached to each now (`native`, `generic`, `none`); `None`: it does
    /// not tell.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn interfaces(&self) -> Result<Option<Vec<(String, String)>>, PlaneError> {
        let link = self.link()?;
        questions::interfaces(&link.session, &link.tables).await
    }

    /// Entries in each relay table, and its size.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn usage(&self) -> Result<BTreeMap<String, (u64, u64)>, PlaneError> {
        let link = self.link()?;
        questions::usage(&link.session, &link.tables).await
    }

    /// What the data plane would do with a packet.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] where it cannot tell, [`PlaneError::Unavailable`] without an answer.
    pub async fn trace(&self, key: FiveTuple) -> Result<Trace, PlaneError> {
        let link = self.link()?;
        questions::trace(&link.session, &link.tables, &key).await
    }

    /// Write rows of tables that are none of the relay's, in this order; every one is tried. For each its result.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] for a write that does not fit the schema: nothing was written then. [`PlaneError::Unavailable`] without an answer:
    /// what was written is not known.
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

    /// All rows of a table.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] where there is no such table, [`PlaneError::Unavailable`] without an answer.
    pub async fn read(&self, table: &str) -> Result<Vec<Row>, PlaneError> {
        let link = self.link()?;
        let found = link.tables.schema.table(table);
        let table = found.ok_or_else(|| PlaneError::Schema(format!("the data plane has no table {table}")))?;
        questions::read_table(&link.session, table, questions::ALL_TIMEOUT).await
    }

    /// Whether the data plane has a table of this name, and for how many rows.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] while there is none.
    pub fn table_size(&self, table: &str) -> Result<Option<usize>, PlaneError> {
        Ok(self.link()?.tables.schema.table(table).map(|table| table.size))
    }

    /// What the data plane offers to conferences.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] where it has no tables for conferences, [`PlaneError::Unavailable`] while there is none.
    pub fn conference_offer(&self) -> Result<Offer, PlaneError> {
        let link = self.link()?;
        let tables = link.tables.conference.as_ref().ok_or_else(conference::no_tables)?;
        Ok(tables.offer(routes::exist(&link.tables.schema)))
    }

    /// Where a switch sends packets to, as its operator has set it; `None` of a data plane whose kernel has the routes.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn routes(&self) -> Result<Option<Routes>, PlaneError> {
        let link = self.link()?;
        routes::read(&link.session, &link.tables.schema).await
    }

    /// Write rows of conferences, in this order; every one is tried. For each its result: what is there already is modified, and what the data
    /// plane puts off is written again.
    ///
    /// # Errors
    /// As of [`Plane::rows`].
    pub async fn write_conferences(&self, steps: &[Step<Key, Data>]) -> Result<Vec<Result<(), UpdateError>>, PlaneError> {
        let link = self.link()?;
        conference::write(&link.session, &link.tables, steps).await
    }

    /// All rows of conferences but relay entries.
    ///
    /// # Errors
    /// [`PlaneError::Schema`] where there are no such tables, [`PlaneError::Unavailable`] without an answer.
    pub async fn conference_rows(&self) -> Result<Vec<(Key, Data)>, PlaneError> {
        let link = self.link()?;
        conference::all(&link.session, &link.tables).await
    }

    /// All relay entries that the agent can have written.
    ///
    /// # Errors
    /// [`PlaneError::Unavailable`] without an answer.
    pub async fn relay_entries(&self) -> Result<Vec<RelayEntry>, PlaneError> {
        let link = self.link()?;
        Ok(questions::entries(&link.session, &link.tables).await?.0)
    }

    /// How streams (rows of `conference`) were received. `None`: the data plane does not measure it.
    ///
    /// # Errors
    /// As of [`Plane::conference_rows`].
    pub async fn reception(&self, keys: &[Key]) -> Result<Option<Vec<(Key, Counters)>>, PlaneError> {
        let link = self.link()?;
        conference::reception(&link.session, &link.tables, keys).await
    }

    /// What rows of `conference` and `layer` have counted: these, or all.
    ///
    /// # Errors
    /// As of [`Plane::conference_rows`].
    pub async fn conference_counters(&self, keys: Option<&[Key]>) -> Result<Vec<Counted>, PlaneError> {
        let link = self.link()?;
        match keys {
            Some(keys) => conference::counted_of(&link.session, &link.tables, keys).await,
            None => conference::counted(&link.session, &link.tables).await,
        }
    }

    /// What all rows of `copy` have counted. One read whatever their number, and it holds up nobody.
    ///
    /// # Errors
    /// As of [`Plane::conference_rows`].
    pub async fn copy_counters(&self) -> Result<Vec<Counted>, PlaneError> {
        let link = self.link()?;
        conference::counted_copies(&link.session, &link.tables).await
    }
}
