//! A connection to Redis, opened when needed and again after a failure. Every request has a deadline.

use super::SharedSettings;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};
use std::time::Duration;
use thiserror::Error;
use tokio::time::timeout;

/// Deadline of a request that costs Redis little.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

/// Reason for a missing answer.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error("another agent has taken over, or the store was emptied")]
    Fenced,
}

impl LinkError {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("OOM"))
    }

    /// Returns whether a key has content that no journal has written.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}

/// One connection.
pub(crate) struct Link {
    pub(crate) settings: SharedSettings,
    connection: Option<MultiplexedConnection>,
}

impl Link {
    pub(crate) fn new(settings: SharedSettings) -> Self {
        Self {
            settings,
            connection: None,
        }
    }

    /// Sends a request. A connection that has failed is not used again.
    pub(crate) async fn ask<T>(
        &mut self,
        limit: Duration,
        question: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, LinkError> {
        let known = self.connection.take();
        let client = &self.settings.client;
        let asked = async {
            let mut connection = match known {
                Some(connection) => connection,
                None => {
                    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
                    client.get_multiplexed_async_connection_with_config(&config).await?
                }
            };
            let answer = question(&mut connection).await;
            Ok::<_, redis::RedisError>((connection, answer))
        };
        let (connection, answer) = timeout(limit, asked).await.map_err(|_| LinkError::Silent(limit))??;
        let is_lost = answer
            .as_ref()
            .is_err_and(|error| error.is_io_error() || error.is_unrecoverable_error());
        self.connection = (!is_lost).then_some(connection);
        Ok(answer?)
    }
}
