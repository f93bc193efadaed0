//! The reason why a question has no answer.

use shunt_bfrt::schema::SchemaError;
use shunt_bfrt_client::CallError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaneError {
    /// There is no data plane, or it did not answer.
    #[error("the data plane is not available: {0}")]
    Unavailable(String),
    /// The data plane rejected the call, or its answer cannot be read.
    #[error("the data plane: {0}")]
    Refused(String),
    /// The data plane has no such table, field or action.
    #[error("the data plane's schema: {0}")]
    Schema(String),
}

impl From<CallError> for PlaneError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(text) => Self::Unavailable(text),
            CallError::Refused(text) => Self::Refused(text),
        }
    }
}

impl From<SchemaError> for PlaneError {
    fn from(error: SchemaError) -> Self {
        Self::Schema(error.0)
    }
}
