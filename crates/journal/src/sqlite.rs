//! The rows of a journal in an SQLite file.

use crate::lock::{self, LockError};
use crate::writer::{Changes, Journal};
use nix::fcntl::Flock;
use rusqlite::{Connection, params};
use shunt_calls::{RowKey, Text};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The version of the schema, kept as `user_version`.
const SCHEMA: i64 = 2;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS lines (call_id BLOB NOT NULL, tag BLOB NOT NULL, \
    media INTEGER NOT NULL, row BLOB NOT NULL, PRIMARY KEY (call_id, tag, media)) WITHOUT ROWID";
const PUT: &str = "INSERT OR REPLACE INTO lines VALUES (?1, ?2, ?3, ?4)";
const REMOVE: &str = "DELETE FROM lines WHERE call_id = ?1 AND tag = ?2 AND media = ?3";

/// Why a journal was not opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("journal {}: {error}", path.display())]
    Sqlite { path: PathBuf, error: rusqlite::Error },
    #[error("move {} aside: {error}", path.display())]
    Aside { path: PathBuf, error: io::Error },
}

/// A journal that was opened.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// The rows found, as JSON.
    pub rows: Vec<(RowKey, Vec<u8>)>,
    /// Where a file that was not usable is now.
    pub damaged: Option<PathBuf>,
}

/// Opens the journal at `path`. A file that is not usable is moved aside, and a new one begun.
/// Blocks while it reads.
pub fn open(path: &Path) -> Result<Opened, OpenError> {
    let lock = lock::take(path)?;
    let (store, rows, damaged) = match Store::open(path, None) {
        Ok((store, rows)) => (store, rows, None),
        Err(error) if !is_damage(&error) => {
            return Err(OpenError::Sqlite {
                path: path.to_owned(),
                error,
            });
        }
        Err(cause) => {
            let aside = set_aside(path)?;
            tracing::error!("journal {} is not usable ({cause}): moved to {}", path.display(), aside.display());
            let opened = Store::open(path, None);
            let (store, rows) = opened.map_err(|error| OpenError::Sqlite {
                path: path.to_owned(),
                error,
            })?;
            (store, rows, Some(aside))
        }
    };
    let journal = Journal::start(store.with_lock(lock));
    Ok(Opened { journal, rows, damaged })
}

/// Whether the file itself is at fault, rather than the disk or a lock.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase, PermissionDenied};
    error
        .sqlite_error_code()
        .is_none_or(|code| matches!(code, CannotOpen | DatabaseCorrupt | NotADatabase | PermissionDenied))
}

/// Moves the file and its log to names that tell the time.
fn set_aside(path: &Path) -> Result<PathBuf, OpenError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let named = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let aside = named(&format!(".damaged-{now}"));
    fs::rename(path, &aside).map_err(|error| OpenError::Aside {
        path: path.to_owned(),
        error,
    })?;
    for end in ["-wal", "-shm"] {
        match fs::rename(named(end), named(&format!(".damaged-{now}{end}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::Aside { path: named(end), error });
            }
            _ => {}
        }
    }
    Ok(aside)
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Store {
    connection: Connection,
    _lock: Option<Flock<File>>,
}

type Rows = Vec<(RowKey, Vec<u8>)>;

impl Store {
    fn open(path: &Path, lock: Option<Flock<File>>) -> rusqlite::Result<(Self, Rows)> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        if tables > 0 && version != SCHEMA {
            return Err(rusqlite::Error::InvalidColumnName(format!("schema {version}, not {SCHEMA}")));
        }
        connection.execute_batch(&format!("BEGIN; {TABLE}; PRAGMA user_version = {SCHEMA}; COMMIT"))?;
        let rows = read(&connection)?;
        Ok((Self { connection, _lock: lock }, rows))
    }

    fn with_lock(mut self, lock: Flock<File>) -> Self {
        self._lock = Some(lock);
        self
    }

    /// Commits all `changes`, or none.
    pub(crate) fn commit(&mut self, changes: &Changes) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for (key, row) in changes {
            let media = key.media.map_or(-1, i64::from);
            match row {
                Some(row) => {
                    let mut put = transaction.prepare_cached(PUT)?;
                    put.execute(params![key.call_id.0, key.tag.0, media, row])?;
                }
                None => {
                    let mut remove = transaction.prepare_cached(REMOVE)?;
                    remove.execute(params![key.call_id.0, key.tag.0, media])?;
                }
            }
        }
        transaction.commit()
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Rows> {
    let mut select = connection.prepare("SELECT call_id, tag, media, row FROM lines")?;
    let rows = select.query_map([], |row| {
        let media: i64 = row.get(2)?;
        let key = RowKey {
            call_id: Text(row.get(0)?),
            tag: Text(row.get(1)?),
            media: u32::try_from(media).ok(),
        };
        Ok((key, row.get(3)?))
    })?;
    rows.collect()
}
