//! Keeps a session: reconnects, and forwards the server's notices.

use crate::connect::Target;
use crate::error::CallError;
use crate::session::{Session, Streams};
use shunt_bfrt::pb::SetForwardingPipelineConfigResponseType::WarmInitFinished;
use shunt_bfrt::pb::{self, stream_message_response};
use shunt_standby::Fence;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Pause between two attempts to connect: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));
/// Capacity of the queue of events.
const WAITING: usize = 4096;

/// Events of the session, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// Subscribed and bound.
    Up,
    /// The session ended, with the reason.
    Down(String),
    /// Learn notices.
    Digest(pb::DigestList),
    /// An entry is idle, or active again.
    Idle(pb::IdleTimeoutNotification),
}

/// Keeps a session with one server until this value is dropped.
pub struct Client {
    current: watch::Receiver<Result<Session, String>>,
    lost: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Client {
    /// Connects in the background. A slow consumer of events loses digests ([`Client::digests_lost`]) and nothing else.
    #[must_use]
    pub fn start(target: Target) -> (Self, mpsc::Receiver<Event>) {
        Self::start_behind(Fence::alone(), target)
    }

    /// As [`Client::start`], once the fence is open; writes nothing while the fence is closed.
    #[must_use]
    pub fn start_behind(fence: Fence, target: Target) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(WAITING);
        let (sender, current) = watch::channel(Err("not yet connected".to_owned()));
        let lost = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(keep(fence, target, sender, events, Arc::clone(&lost)));
        (Self { current, lost, task }, receiver)
    }

    /// The current session.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] with the reason if there is none.
    pub fn session(&self) -> Result<Session, CallError> {
        self.current.borrow().clone().map_err(CallError::Unavailable)
    }

    /// Number of learn notice lists that were dropped because the consumer was slow.
    #[must_use]
    pub fn digests_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    fence: Fence,
    target: Target,
    current: watch::Sender<Result<Session, String>>,
    events: mpsc::Sender<Event>,
    lost: Arc<AtomicU64>,
) {
    let mut delay = BACKOFF.0;
    let mut said = String::new();
    loop {
        fence.opened().await;
        let reason = match Session::open(&target, &fence).await {
            Ok((session, streams)) => {
                tracing::info!("data plane {}: bound to {}", target.address, target.program);
                delay = BACKOFF.0;
                current.send_modify(|now| *now = Ok(session.clone()));
                if events.send(Event::Up).await.is_err() {
                    return;
                }
                let reason = attend(&session, streams, &events, &lost).await;
                fence.unbound(false);
                session.lose(reason.clone());
                current.send_modify(|now| *now = Err(reason.clone()));
                if events.send(Event::Down(reason.clone())).await.is_err() {
                    return;
                }
                reason
            }
            Err(reason) => reason,
        };
        if reason != said {
            tracing::warn!("data plane {}: {reason}", target.address);
            said.clone_from(&reason);
        }
        current.send_modify(|now| *now = Err(reason));
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(BACKOFF.1);
    }
}

/// Forwards the server's notices until the session ends; returns the reason.
async fn attend(session: &Session, mut streams: Streams, events: &mpsc::Sender<Event>, lost: &AtomicU64) -> String {
    loop {
        let message = tokio::select! {
            message = streams.notices.message() => message,
            reason = session.over() => return reason,
        };
        let update = match message {
            Ok(Some(message)) => message.update,
            Ok(None) => return "the target ended the stream".into(),
            Err(status) => return status.to_string(),
        };
        let taken = match update {
            Some(stream_message_response::Update::Digest(digest)) => {
                let taken = events.try_send(Event::Digest(digest)).is_ok();
                lost.fetch_add(u64::from(!taken), Ordering::Relaxed);
                true
            }
            Some(stream_message_response::Update::IdleTimeoutNotification(notice)) => events.send(Event::Idle(notice)).await.is_ok(),
            // This client never requests a reset, so another one did. Its entries, idle attributes and media ranges are gone.
            Some(stream_message_response::Update::SetForwardingPipelineConfigResponse(done))
                if done.set_forwarding_pipeline_config_response_type() == WarmInitFinished =>
            {
                return "another client has reset the target's tables".into();
            }
            _ => true,
        };
        if !taken {
            return "nobody takes the events".into();
        }
    }
}
