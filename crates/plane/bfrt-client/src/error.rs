//! Results of a call and of each update in it.

use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::google::rpc;
use shunt_bfrt::pb;
use tonic::{Code, Status};

/// Why one update failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UpdateError {
    /// google.rpc.Code: 5 not found, 6 already exists, 8 no space, 14 retry later.
    pub code: i32,
    pub message: String,
}

impl UpdateError {
    /// Whether a repetition of the update may succeed soon. Nothing was executed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.code == Code::Unavailable as i32
    }
}

/// Result of one update.
pub type Outcome = Result<(), UpdateError>;

/// Why a whole call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer: the server may have executed the call or not.
    #[error("{0}")]
    Unavailable(String),
    /// The server rejected the call and executed nothing.
    #[error("{0}")]
    Refused(String),
}

/// What a failed call implies for its session.
pub enum Failure {
    /// Errors of single updates or entities, by position. Those after the last error succeeded.
    Partial(Vec<Outcome>),
    /// The call failed; the session continues.
    Call(CallError),
    /// The server no longer knows this client.
    Lost(CallError),
}

impl Failure {
    /// `target` names the server in the text.
    pub fn of(status: &Status, target: &str) -> Self {
        let text = format!("{target}: {:?}: {}", status.code(), status.message());
        match status.code() {
            Code::Unknown => match details(status.details()) {
                Some(outcomes) => Self::Partial(outcomes),
                // Subscribed but not bound: the server has lost the binding.
                None => Self::Lost(CallError::Unavailable(text)),
            },
            // Unknown client: the server restarted before the stream broke.
            Code::NotFound | Code::PermissionDenied => Self::Lost(CallError::Unavailable(text)),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Internal | Code::Aborted | Code::DataLoss => {
                Self::Call(CallError::Unavailable(text))
            }
            _ => Self::Call(CallError::Refused(text)),
        }
    }
}

/// The errors of a batch; `None` where the server sent none.
fn details(encoded: &[u8]) -> Option<Vec<Outcome>> {
    let status = rpc::Status::decode(encoded).ok()?;
    let outcomes: Option<Vec<Outcome>> = status
        .details
        .iter()
        .map(|any| {
            let error = pb::Error::decode(Bytes::copy_from_slice(&any.value)).ok()?;
            Some(match error.canonical_code {
                0 => Ok(()),
                code => Err(UpdateError {
                    code,
                    message: error.message,
                }),
            })
        })
        .collect();
    outcomes.filter(|outcomes| !outcomes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(errors: &[(i32, &str)]) -> Status {
        let details = errors.iter().map(|(code, message)| {
            let error = pb::Error {
                canonical_code: *code,
                message: (*message).into(),
                ..Default::default()
            };
            prost_any(error.encode_to_vec())
        });
        let status = rpc::Status {
            code: 2,
            details: details.collect(),
            ..Default::default()
        };
        Status::with_details(Code::Unknown, "Write Error Status", status.encode_to_vec().into())
    }

    fn prost_any(value: Vec<u8>) -> <Vec<prost_types::Any> as IntoIterator>::Item {
        prost_types::Any {
            type_url: "type.googleapis.com/bfrt_proto.Error".into(),
            value,
        }
    }

    #[test]
    fn errors_of_updates_keep_their_positions() {
        let Failure::Partial(outcomes) = Failure::of(&status(&[(0, ""), (6, "Already exists")]), "here") else {
            panic!("not taken for a partial failure");
        };
        assert_eq!(outcomes[0], Ok(()));
        assert_eq!(outcomes[1].as_ref().map_err(|error| error.code), Err(6));
    }

    #[test]
    fn a_lost_binding_ends_the_session() {
        assert!(matches!(
            Failure::of(&Status::unknown("Unable to get bound_program"), "here"),
            Failure::Lost(_)
        ));
        assert!(matches!(
            Failure::of(&Status::not_found("no such client"), "here"),
            Failure::Lost(_)
        ));
    }

    #[test]
    fn what_may_have_been_done_is_told_from_what_was_refused() {
        for (status, uncertain) in [
            (Status::unavailable(""), true),
            (Status::deadline_exceeded(""), true),
            (Status::resource_exhausted(""), false),
        ] {
            let Failure::Call(error) = Failure::of(&status, "here") else {
                panic!("{status:?} ends the session")
            };
            assert_eq!(matches!(error, CallError::Unavailable(_)), uncertain, "{status:?}");
        }
    }
}
