//! One session: from the subscription to the end of its stream.

use crate::connect::Target;
use crate::error::{CallError, Failure, Outcome};
use crate::handshake::{bind, client, fetch_schema, subscribe};
use crate::writes::Writes;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{ReadRequest, WriteRequest};
use shunt_bfrt::pb;
use shunt_bfrt::pb::bf_runtime_client::BfRuntimeClient;
use shunt_bfrt::schema::Schema;
use shunt_standby::Fence;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

/// A subscribed client. Clones share the session.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    writes: Writes,
    client: BfRuntimeClient<Channel>,
    bulk: BfRuntimeClient<Channel>,
    target: Target,
    fence: Fence,
    schema: Arc<Schema>,
    contexts: Vec<Bytes>,
    /// Why the session ended; `None` while it exists.
    lost: watch::Sender<Option<String>>,
    /// Time of the first request since the last answer.
    unanswered: Mutex<Option<Instant>>,
}

/// The streams of both clients, which keep the session open.
pub(crate) struct Streams {
    pub notices: Streaming<pb::StreamMessageResponse>,
    _requests: [mpsc::Sender<pb::StreamMessageRequest>; 2],
    _bulk: Streaming<pb::StreamMessageResponse>,
}

impl Session {
    /// Connects, subscribes, reads the schema and binds.
    pub(crate) async fn open(target: &Target, fence: &Fence) -> Result<(Self, Streams), String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", target.address);
        let channel = target.connect().await.map_err(|error| failed(&error))?;
        let (mut own, writes) = (client(channel.clone()), Writes::new(channel));
        let mut bulk = client(target.connect().await.map_err(|error| failed(&error))?);
        let (notices, requests) = subscribe(&mut own, target, target.client_id, true).await?;
        let (bulk_notices, bulk_requests) = subscribe(&mut bulk, target, target.client_id + 1, false).await?;
        let (schema, contexts) = fetch_schema(&mut own, target).await?;
        bind(&writes, target, fence).await?;
        let shared = Shared {
            writes,
            client: own,
            bulk,
            target: target.clone(),
            fence: fence.clone(),
            schema: Arc::new(schema),
            contexts,
            lost: watch::Sender::new(None),
            unanswered: Mutex::new(None),
        };
        let streams = Streams {
            notices,
            _requests: [requests, bulk_requests],
            _bulk: bulk_notices,
        };
        let session = Self { shared: Arc::new(shared) };
        Ok((session, streams))
    }

    /// The tables of the program and of the target.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shared.schema
    }

    /// The compiler's context.json of each pipeline, if the server sends it. It tells how a switch stores keys.
    #[must_use]
    pub fn contexts(&self) -> &[Bytes] {
        &self.shared.contexts
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.lost.borrow().is_some()
    }

    /// Ends the session and reconnects, for a caller that finds that the server does not execute requests.
    pub fn give_up(&self, reason: &str) {
        self.lose(reason.to_owned());
    }

    /// Writes encoded `Update`s. The server tries each one and returns its result.
    ///
    /// # Errors
    /// [`CallError`] if the whole call failed or the fence is closed.
    pub async fn write(&self, updates: Vec<Bytes>, timeout: Duration) -> Result<Vec<Outcome>, CallError> {
        let count = updates.len();
        let message = WriteRequest {
            target: Some(everywhere(&self.shared.target)),
            client_id: self.shared.target.client_id,
            updates,
            ..Default::default()
        };
        let pass = self.shared.fence.pass(Instant::now());
        let pass = pass.map_err(|error| CallError::Unavailable(error.to_string()))?;
        match self.ask(self.shared.writes.write(pass, message, timeout), timeout).await? {
            Ok(_) => Ok(vec![Ok(()); count]),
            Err(Failure::Partial(mut outcomes)) if outcomes.len() <= count => {
                outcomes.resize(count, Ok(()));
                Ok(outcomes)
            }
            Err(failure) => Err(self.judge(failure)),
        }
    }

    /// Reads entities; the answer omits missing ones.
    ///
    /// # Errors
    /// [`CallError`] if the call failed for another reason.
    pub async fn read(&self, entities: Vec<pb::Entity>, timeout: Duration) -> Result<Vec<Bytes>, CallError> {
        self.read_encoded(encoded(&entities), timeout).await
    }

    /// [`Session::read`] of encoded `Entity`s.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn read_encoded(&self, entities: Vec<Bytes>, timeout: Duration) -> Result<Vec<Bytes>, CallError> {
        let mut found = Vec::new();
        let request = self.read_request(entities, self.shared.target.client_id, String::new());
        self.read_with(self.shared.client.clone(), request, timeout, |part| found.extend(part))
            .await?;
        Ok(found)
    }

    /// Reads whole tables with the client for large reads. `part` gets the encoded entities of each message as it arrives. `timeout`
    /// applies to each message.
    ///
    /// # Errors
    /// As [`Session::read`]. Entities that `part` already got remain valid. The session continues unless other requests get no answer either.
    pub async fn read_all(&self, entities: Vec<pb::Entity>, timeout: Duration, part: impl FnMut(Vec<Bytes>)) -> Result<(), CallError> {
        self.read_all_encoded(encoded(&entities), timeout, part).await
    }

    /// [`Session::read_all`] of encoded `Entity`s.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn read_all_encoded(&self, entities: Vec<Bytes>, timeout: Duration, part: impl FnMut(Vec<Bytes>)) -> Result<(), CallError> {
        let target = &self.shared.target;
        let request = self.read_request(entities, target.client_id + 1, target.program.clone());
        self.read_large(request, timeout, part).await
    }

    fn read_request(&self, entities: Vec<Bytes>, client_id: u32, p4_name: String) -> ReadRequest {
        ReadRequest {
            target: Some(everywhere(&self.shared.target)),
            client_id,
            entities,
            p4_name,
        }
    }

    async fn read_with(
        &self,
        mut client: BfRuntimeClient<Channel>,
        request: ReadRequest,
        timeout: Duration,
        mut part: impl FnMut(Vec<Bytes>),
    ) -> Result<(), CallError> {
        let mut messages = match self.ask(client.read(timed(request, timeout)), timeout).await? {
            Ok(response) => response.into_inner(),
            Err(failure) => return self.not_found_or(failure),
        };
        loop {
            match self.ask(messages.message(), timeout).await? {
                Ok(Some(message)) => part(message.entities),
                Ok(None) => return Ok(()),
                Err(failure) => return self.not_found_or(failure),
            }
        }
    }

    /// The same with the client for large reads. A switch answers a whole table at once, after reading all of it, so its silence means
    /// nothing. Meanwhile the other client sends requests.
    async fn read_large(&self, request: ReadRequest, timeout: Duration, mut part: impl FnMut(Vec<Bytes>)) -> Result<(), CallError> {
        let mut client = self.shared.bulk.clone();
        let mut messages = match self.wait_alive(client.read(Request::new(request)), timeout).await? {
            Ok(response) => response.into_inner(),
            Err(failure) => return self.not_found_or(failure),
        };
        loop {
            match self.wait_alive(messages.message(), timeout).await? {
                Ok(Some(message)) => {
                    self.asked(false);
                    part(message.entities);
                }
                Ok(None) => return Ok(()),
                Err(failure) => return self.not_found_or(failure),
            }
        }
    }

    /// Waits for a part of a large answer while the server is alive, at most for `timeout`.
    async fn wait_alive<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
        timeout: Duration,
    ) -> Result<Result<T, Failure>, CallError> {
        let target = &self.shared.target;
        let signs = async {
            loop {
                tokio::time::sleep(target.patience / 4).await;
                // An empty request costs the server nothing, but gets an answer. Without one the session ends.
                let _ = self.read_encoded(Vec::new(), target.patience / 2).await;
            }
        };
        tokio::select! {
            result = call => Ok(result.map_err(|status| Failure::of(&status, &target.address))),
            () = tokio::time::sleep(timeout) => Err(CallError::Unavailable(format!("{}: no part of a large answer in {timeout:?}", target.address))),
            reason = self.over() => Err(CallError::Unavailable(reason)),
            () = signs => Err(CallError::Unavailable(String::new())), // never ends
        }
    }

    fn not_found_or(&self, failure: Failure) -> Result<(), CallError> {
        if let Failure::Partial(outcomes) = &failure
            && outcomes.iter().flat_map(Result::as_ref).count() < outcomes.len()
            && outcomes
                .iter()
                .filter_map(|outcome| outcome.as_ref().err())
                .all(|error| error.code == tonic::Code::NotFound as i32)
        {
            return Ok(());
        }
        Err(self.judge(failure))
    }

    /// Waits for an answer. The session ends if the server has answered nothing for the target's time-out.
    async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
        timeout: Duration,
    ) -> Result<Result<T, Failure>, CallError> {
        let target = &self.shared.target;
        if let Some(reason) = self.shared.lost.borrow().as_ref() {
            return Err(CallError::Unavailable(reason.clone()));
        }
        self.asked(true);
        let over = || CallError::Unavailable(format!("{}: no answer in {timeout:?}", target.address));
        let result = tokio::select! {
            result = call => result,
            () = tokio::time::sleep(timeout) => {
                self.give_up_the_silent();
                return Err(over());
            }
            reason = self.over() => return Err(CallError::Unavailable(reason)),
        };
        match result {
            Ok(answer) => {
                self.asked(false);
                Ok(Ok(answer))
            }
            // The transport's own timer may fire first; it reports Cancelled.
            Err(status) if matches!(status.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled) => {
                self.give_up_the_silent();
                Err(over())
            }
            Err(status) => {
                self.asked(false);
                Ok(Err(Failure::of(&status, &target.address)))
            }
        }
    }

    fn asked(&self, waiting: bool) {
        let mut unanswered = self.shared.unanswered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *unanswered = waiting.then(|| unanswered.unwrap_or_else(Instant::now));
    }

    fn give_up_the_silent(&self) {
        let since = *self.shared.unanswered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let patience = self.shared.target.patience;
        if since.is_some_and(|since| since.elapsed() >= patience) {
            self.lose(format!("{} has answered nothing for {patience:?}", self.shared.target.address));
        }
    }

    fn judge(&self, failure: Failure) -> CallError {
        match failure {
            Failure::Call(error) => error,
            Failure::Lost(error) => {
                self.lose(error.to_string());
                error
            }
            Failure::Partial(outcomes) => {
                let first = outcomes.into_iter().find_map(Result::err);
                CallError::Refused(first.map_or_else(|| "errors for other updates than were sent".into(), |error| error.message))
            }
        }
    }

    /// Ends the session, whatever the state of its stream.
    pub(crate) fn lose(&self, reason: String) {
        self.shared.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(reason);
            first
        });
    }

    /// Waits for the end of the session; returns the reason.
    pub(crate) async fn over(&self) -> String {
        let mut lost = self.shared.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        }
    }
}

pub(crate) fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

fn encoded(entities: &[pb::Entity]) -> Vec<Bytes> {
    entities.iter().map(|entity| entity.encode_to_vec().into()).collect()
}

fn everywhere(target: &Target) -> pb::TargetDevice {
    pb::TargetDevice {
        device_id: target.device_id,
        pipe_id: 0xffff,
        direction: 0xff,
        prsr_id: 0xff,
    }
}
