//! Options in a call's metadata.

use shunt_bfrt::{BfrtError, Code};
use std::time::{Duration, Instant};
use tonic::metadata::MetadataMap;

/// Options of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Send a status for each update or entity in the response.
    pub error_in_resp: bool,
    /// A delete of a missing entry is no error; only together with `error_in_resp`.
    pub ignore_not_found: bool,
    deadline: Option<Instant>,
}

impl Options {
    /// Reads a call's metadata; values that are not numbers are ignored.
    #[must_use]
    pub fn of(metadata: &MetadataMap) -> Self {
        let number = |name: &str| {
            metadata
                .get(name)
                .and_then(|value| value.to_str().ok())
                .and_then(|text| text.parse::<u64>().ok())
        };
        let seconds = number("deadline_sec").map(Duration::from_secs);
        let nanoseconds = number("deadline_nsec").map(Duration::from_nanos);
        let wait = match (seconds, nanoseconds) {
            (None, None) => None,
            (seconds, nanoseconds) => seconds.unwrap_or_default().checked_add(nanoseconds.unwrap_or_default()),
        };
        let error_in_resp = number("error_in_resp") == Some(1);
        Self {
            error_in_resp,
            ignore_not_found: error_in_resp && number("ignore_not_found") == Some(1),
            deadline: wait.and_then(|wait| Instant::now().checked_add(wait)),
        }
    }

    /// Checks the client's own deadline.
    ///
    /// # Errors
    /// It has passed.
    pub fn check_deadline(&self, what: &str) -> Result<(), BfrtError> {
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Err(BfrtError::new(Code::DeadlineExceeded, format!("{what} RPC request timed out")));
        }
        Ok(())
    }
}
