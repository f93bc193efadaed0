//! A journal in Redis, for agents of which another can take over. Every write carries the writer's fencing token.
//!
//! Keys, with one hash tag for a group so that a Redis cluster keeps them together:
//!
//! | `shunt:{GROUP}:` | |
//! | --- | --- |
//! | `lines` | hash: field of a row → row |
//! | `index` | sorted set of the fields, in the order of their bytes: rows of one Call-ID are together |
//! | `ports` | sorted set: side and field, by the relay port that was given out |
//! | `documents` | hash: name → what is kept beside calls |
//! | `bad` | list: the latest rows that cannot be used |
//! | `token` | the fencing token that was granted last; it only grows |
//! | `lease` | JSON of the agent in charge; expires unless it is renewed |
//! | `format` | format of the rows |

mod grants;
mod link;
mod reader;
mod rows;
mod writer;

pub use grants::Grants;
pub(crate) use reader::Opened;
pub(crate) use writer::Writer;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Where a group stores its calls.
#[derive(Clone)]
pub struct SharedSettings {
    pub(crate) client: redis::Client,
    /// The address for people, without a password.
    pub(crate) name: String,
    pub(crate) group: String,
    /// The fencing token of this agent's lease.
    pub(crate) token: Arc<AtomicU64>,
}

impl SharedSettings {
    /// Parses `url`: `redis://HOST:PORT/DB`, `rediss://` for TLS, or `unix:///PATH`.
    ///
    /// # Errors
    /// It has another form; the text names no password.
    pub fn new(url: &str, group: &str, password: Option<&str>) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let name = format!("{scheme}://{} group {group}", rest.rsplit('@').next().unwrap_or_default());
        let failed = |error: redis::RedisError| format!("{name}: {error}");
        let mut info = redis::IntoConnectionInfo::into_connection_info(url).map_err(failed)?;
        if let Some(password) = password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let client = redis::Client::open(info).map_err(failed)?;
        Ok(Self {
            client,
            name,
            group: group.to_owned(),
            token: Arc::default(),
        })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("shunt:{{{}}}:{name}", self.group)
    }
}

impl std::fmt::Debug for SharedSettings {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.name)
    }
}
