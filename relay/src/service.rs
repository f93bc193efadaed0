//! The engine behind its lock: what control sockets execute commands on, and what happens as time goes by.

use crate::engine::{Engine, Settings};
use crate::media::{Shared, Sockets};
use shunt_control::Sender;
use shunt_latch::Time;
use shunt_notify::Notifier;
use shunt_rtpproxy::{ErrorCode, error_reply, notify_line};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The relay as its control sockets see it.
pub struct Service {
    engine: Mutex<Engine<Sockets>>,
    notifier: Mutex<Notifier>,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    #[must_use]
    pub fn new(settings: Settings, sockets: Sockets, shared: Arc<Shared>) -> Self {
        Self {
            engine: Mutex::new(Engine::new(settings, sockets)),
            notifier: Mutex::default(),
            shared,
        }
    }

    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// End the sessions whose time is up, and tell their SIP servers. Needs the runtime.
    pub fn sweep(&self) {
        let over = lock(&self.engine).sweep(self.now());
        let mut notifier = lock(&self.notifier);
        for session in over {
            let (call_id, tag) = (session.call_id.escape_ascii(), session.tag.escape_ascii());
            tracing::warn!(call_id = %call_id, "{tag}: no media for {} s: session time-out", session.limit().as_secs());
            if let Some(notice) = &session.notice {
                notifier.send(&notice.target, notify_line(&notice.tag));
            }
        }
    }

    /// Whether all threads that forward media run.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        lock(&self.engine).media.are_alive()
    }

    #[must_use]
    pub fn sessions(&self) -> usize {
        lock(&self.engine).sessions()
    }

    /// Deliver the notices that are queued.
    pub async fn close(&self) {
        let notifier = std::mem::take(&mut *lock(&self.notifier));
        notifier.close().await;
    }
}

impl shunt_control::Service for Service {
    async fn execute(&self, command: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let now = self.now();
        // A fault in one command is not to end the calls of all others.
        let reply = catch_unwind(AssertUnwindSafe(|| lock(&self.engine).execute(now, command, sender.ip())));
        Some(reply.unwrap_or_else(|_| {
            tracing::error!("command failed: {}", command[..command.len().min(200)].escape_ascii());
            error_reply(ErrorCode::SYNTAX)
        }))
    }

    fn on_repetition(&self) {
        lock(&self.engine).on_repetition();
    }
}
