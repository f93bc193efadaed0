//! The rows of a journal in an SQLite file.

use crate::change::{Change, Changes};
use rusqlite::ffi::{SQLITE_IOERR_READ, SQLITE_IOERR_SHORT_READ};
use rusqlite::{Connection, ErrorCode, params};
use shunt_calls::RowKey;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The version of the schema, stored as `user_version`.
const SCHEMA: i64 = 3;
/// Most bad rows kept; the latest stay.
const MOST_BAD: i64 = 1000;
/// Time-out for file systems without shared memory, where a reader delays the writer.
const BUSY: Duration = Duration::from_millis(250);

const TABLES: &str = "
    CREATE TABLE lines (id INTEGER PRIMARY KEY, call_id BLOB NOT NULL, tag BLOB NOT NULL, media INTEGER NOT NULL, \
        caller_port INTEGER, callee_port INTEGER, row BLOB NOT NULL, UNIQUE (call_id, tag, media));
    CREATE TABLE bad_rows (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, reason TEXT NOT NULL, \
        call_id BLOB, tag BLOB, media INTEGER, row BLOB);";
const PUT: &str = "INSERT INTO lines (call_id, tag, media, caller_port, callee_port, row) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
    ON CONFLICT (call_id, tag, media) DO UPDATE SET caller_port = excluded.caller_port, callee_port = excluded.callee_port, row = excluded.row";
const REMOVE: &str = "DELETE FROM lines WHERE call_id = ?1 AND tag = ?2 AND media = ?3";
const COPY_BAD: &str = "INSERT INTO bad_rows (time, reason, call_id, tag, media, row) \
    SELECT ?4, ?5, call_id, tag, media, row FROM lines WHERE call_id = ?1 AND tag = ?2 AND media = ?3";
const TRIM_BAD: &str = "DELETE FROM bad_rows WHERE id <= (SELECT max(id) FROM bad_rows) - ?1";

/// Reason why a store cannot be used.
#[derive(Debug, Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("it has schema {0}, this version reads {SCHEMA}")]
    Schema(i64),
    #[error("it is no file")]
    NoFile,
    #[error("its rows are not in order")]
    Order,
    #[error("its folder: {0}")]
    Folder(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl StoreError {
    /// Returns whether the file itself is damaged, rather than the disk failing.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Schema(_) | Self::NoFile | Self::Order => true,
            Self::Folder(_) => false,
            Self::Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Sqlite(error) => error.sqlite_error().is_some_and(|error| {
                let unreadable = [SQLITE_IOERR_READ, SQLITE_IOERR_SHORT_READ];
                matches!(error.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) || unreadable.contains(&error.extended_code)
            }),
        }
    }

    /// Returns whether the open file can be used again after the disk has space.
    pub(crate) fn is_passing(&self) -> bool {
        let code = match self {
            Self::Sqlite(error) => error.sqlite_error_code(),
            _ => None,
        };
        matches!(code, Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy))
    }
}

/// Creates the file's folder if only that is missing. More missing folders indicate a mistake.
pub(crate) fn make_folder(path: &Path) -> Result<(), StoreError> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) else {
        return Ok(());
    };
    DirBuilder::new().mode(0o750).create(folder).map_err(StoreError::Folder)
}

/// Checks that the path is a readable and writable file, or does not exist.
fn look_at(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(StoreError::NoFile),
        Ok(_) => Ok(OpenOptions::new().read(true).write(true).open(path).map(drop)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::Folder(error)),
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Store {
    connection: Connection,
}

impl Store {
    /// Opens the file, and creates its tables if it has none. A file with tables is not written.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        look_at(path)?;
        let mut connection = connect(path)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        if tables > 0 {
            for statement in [PUT, COPY_BAD] {
                match connection.prepare_cached(statement) {
                    Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => return Err(StoreError::Schema(version)),
                    prepared => drop(prepared?),
                }
            }
        }
        if tables > 0 && version != SCHEMA {
            return Err(StoreError::Schema(version));
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // The reader's thread copies the log, so no commit waits for the disk.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if tables == 0 {
            let transaction = connection.transaction()?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", SCHEMA)?;
            transaction.commit()?;
        }
        Ok(Self { connection })
    }

    /// Commits all `changes`, or none.
    pub(crate) fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        // One statement is a transaction.
        if let Some((key, change @ (Change::Put { .. } | Change::Remove))) = changes.iter().next().filter(|_| changes.len() == 1) {
            return apply(&self.connection, key, change);
        }
        let transaction = self.connection.transaction()?;
        for (key, change) in changes {
            apply(&transaction, key, change)?;
        }
        Ok(transaction.commit()?)
    }

    /// Removes all rows.
    pub(crate) fn empty(&mut self) -> Result<(), StoreError> {
        self.connection.execute("DELETE FROM lines", [])?;
        Ok(())
    }

    /// Restarts the log, which grew while it was copied. Not while a reader is at work.
    pub(crate) fn restart_log(&self) {
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())) {
            tracing::warn!("journal: the log is not begun anew: {error}");
        }
    }
}

/// Opens a connection to the file, which need not exist yet.
pub(crate) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // A file system that syncs a growing log delays each append by tens of milliseconds. The page cache outlives the process, and calls do
    // not outlive their host.
    connection.pragma_update(None, "synchronous", "OFF")?;
    Ok(connection)
}

/// Returns `media` in its stored form.
pub(crate) fn media_column(key: &RowKey) -> i64 {
    key.media.map_or(-1, i64::from)
}

fn apply(connection: &Connection, key: &RowKey, change: &Change) -> Result<(), StoreError> {
    let (call_id, tag, media) = (&key.call_id.0, &key.tag.0, media_column(key));
    match change {
        Change::Put {
            ports: [caller, callee],
            json,
        } => {
            let mut put = connection.prepare_cached(PUT)?;
            put.execute(params![call_id, tag, media, caller, callee, json])?;
        }
        Change::Remove => {
            connection.prepare_cached(REMOVE)?.execute(params![call_id, tag, media])?;
        }
        Change::SetAside(reason) => {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let time = i64::try_from(time).unwrap_or(i64::MAX);
            let copied = connection
                .prepare_cached(COPY_BAD)?
                .execute(params![call_id, tag, media, time, reason])?;
            if copied > 0 {
                connection.execute(TRIM_BAD, [MOST_BAD])?;
            }
            connection.prepare_cached(REMOVE)?.execute(params![call_id, tag, media])?;
        }
    }
    Ok(())
}
