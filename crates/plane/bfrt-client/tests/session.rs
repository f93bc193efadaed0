//! The client against a small server in the test: its requests, and its reaction to answers, silence and ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{ReadRequest, ReadResponse, WriteRequest};
use shunt_bfrt::google::rpc;
use shunt_bfrt::pb::bf_runtime_server::{BfRuntime, BfRuntimeServer};
use shunt_bfrt::pb::{self, stream_message_request, stream_message_response};
use shunt_bfrt_client::{CallError, Client, Event, Target};
use shunt_standby::Fence;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

/// The server's behaviour.
#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Good,
    /// It does not answer Write.
    Silent,
    /// It knows no client.
    Forgetful,
    /// The second update of each Write fails.
    Picky,
}

type Notices = mpsc::Sender<Result<pb::StreamMessageResponse, Status>>;

#[derive(Clone, Default)]
struct Server {
    mood: Arc<Mutex<Mood>>,
    /// Client ids that have subscribed, in order, and the bound one.
    subscribed: Arc<Mutex<Vec<u32>>>,
    bound: Arc<Mutex<Vec<u32>>>,
    notices: Arc<Mutex<Vec<Notices>>>,
}

impl Server {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }
}

#[tonic::async_trait]
impl BfRuntime for Server {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<ReadResponse, Status>> + Send>>;
    type StreamChannelStream = ReceiverStream<Result<pb::StreamMessageResponse, Status>>;

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        let count = request.get_ref().updates.len();
        match self.mood() {
            Mood::Good => Ok(Response::new(pb::WriteResponse::default())),
            Mood::Silent => std::future::pending().await,
            Mood::Forgetful => Err(Status::unknown("Unable to get bound_program")),
            Mood::Picky => {
                assert!(count >= 2);
                let error = |code| prost_types::Any {
                    type_url: "type.googleapis.com/bfrt_proto.Error".into(),
                    value: pb::Error {
                        canonical_code: code,
                        ..Default::default()
                    }
                    .encode_to_vec(),
                };
                let status = rpc::Status {
                    code: 2,
                    details: vec![error(0), error(6)],
                    ..Default::default()
                };
                Err(Status::with_details(
                    tonic::Code::Unknown,
                    "Write Error Status",
                    status.encode_to_vec().into(),
                ))
            }
        }
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let id = request.get_ref().client_id;
        assert_eq!(
            request.get_ref().p4_name.is_empty(),
            self.bound.lock().unwrap().contains(&id),
            "an unbound client names the program"
        );
        let parts = (0..3).map(|n| {
            Ok(ReadResponse {
                entities: vec![Bytes::from(vec![n])],
                ..Default::default()
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<pb::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::SetForwardingPipelineConfigResponse>, Status> {
        self.bound.lock().unwrap().push(request.get_ref().client_id);
        Ok(Response::new(pb::SetForwardingPipelineConfigResponse::default()))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<pb::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::GetForwardingPipelineConfigResponse>, Status> {
        let config = pb::ForwardingPipelineConfig {
            p4_name: "relay".into(),
            bfruntime_info: r#"{"tables": []}"#.into(),
            ..Default::default()
        };
        Ok(Response::new(pb::GetForwardingPipelineConfigResponse {
            config: vec![config],
            ..Default::default()
        }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<pb::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, receiver) = mpsc::channel(16);
        let first = requests.next().await.unwrap()?;
        assert!(matches!(first.update, Some(stream_message_request::Update::Subscribe(_))));
        self.subscribed.lock().unwrap().push(first.client_id);
        let reply = pb::StreamMessageResponse {
            update: Some(stream_message_response::Update::Subscribe(pb::Subscribe::default())),
        };
        sender.send(Ok(reply)).await.unwrap();
        self.notices.lock().unwrap().push(sender);
        // The client's half ends with the client; the test expects nothing else of it.
        tokio::spawn(async move { while let Some(Ok(_)) = requests.next().await {} });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

struct Lab {
    server: Server,
    client: Client,
    events: mpsc::Receiver<Event>,
    _folder: Folder,
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn lab(name: &str) -> Lab {
    let mut lab = lab_behind(name, Fence::alone());
    assert!(matches!(lab.event().await, Event::Up));
    lab
}

fn lab_behind(name: &str, fence: Fence) -> Lab {
    let folder = std::env::temp_dir().join(format!("bfrt-client-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("bfrt.sock");
    let server = Server::default();
    let listener = UnixListener::bind(&path).unwrap();
    let serving = tonic::transport::Server::builder().add_service(BfRuntimeServer::new(server.clone()));
    tokio::spawn(serving.serve_with_incoming(UnixListenerStream::new(listener)));
    let target = Target {
        address: format!("unix:{}", path.display()),
        tls: None,
        device_id: 0,
        program: "relay".into(),
        client_id: 77,
        patience: Duration::from_millis(300),
    };
    let (client, events) = Client::start_behind(fence, target);
    Lab {
        server,
        client,
        events,
        _folder: Folder(folder),
    }
}

#[tokio::test]
async fn nobody_binds_or_writes_without_the_lease() {
    let fence = Fence::closed();
    let mut lab = lab_behind("fence", fence.clone());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(lab.server.subscribed.lock().unwrap().is_empty() && lab.client.session().is_err());
    fence.hold(Instant::now() + LONG, false);
    assert!(matches!(lab.event().await, Event::Up));
    let session = lab.client.session().unwrap();
    assert!(session.write(updates(1), SECOND).await.is_ok());
    fence.hold(Instant::now(), false);
    let refused = session.write(updates(1), SECOND).await.unwrap_err();
    assert!(
        matches!(&refused, CallError::Unavailable(text) if text.contains("another agent")),
        "{refused}"
    );
    assert!(session.read(vec![], SECOND).await.is_ok(), "reading is allowed");
    fence.hold(Instant::now(), true);
    assert!(
        session.write(updates(1), SECOND).await.is_ok(),
        "nobody can be granted the lease, and the binding has lasted"
    );
    session.give_up("the connection is lost");
    assert!(matches!(lab.event().await, Event::Down(_)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        lab.server.bound.lock().unwrap().len(),
        1,
        "it does not bind again without the lease"
    );
    fence.hold(Instant::now() + LONG, false);
    assert!(matches!(lab.event().await, Event::Up));
}

impl Lab {
    async fn event(&mut self) -> Event {
        tokio::time::timeout(LONG, self.events.recv())
            .await
            .expect("an event")
            .expect("the client lives")
    }

    fn set(&self, mood: Mood) {
        *self.server.mood.lock().unwrap() = mood;
    }
}

fn updates(count: usize) -> Vec<Bytes> {
    vec![Bytes::from_static(b"\x08\x01"); count]
}

#[tokio::test]
async fn it_subscribes_two_clients_and_binds_one() {
    let lab = lab("subscribe").await;
    assert_eq!(*lab.server.subscribed.lock().unwrap(), [77, 78]);
    assert_eq!(*lab.server.bound.lock().unwrap(), [77]);
}

#[tokio::test]
async fn each_update_has_its_outcome() {
    let lab = lab("outcomes").await;
    let session = lab.client.session().unwrap();
    assert_eq!(session.write(updates(3), SECOND).await, Ok(vec![Ok(()); 3]));
    lab.set(Mood::Picky);
    let outcomes = session.write(updates(3), SECOND).await.unwrap();
    let codes: Vec<i32> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map_or_else(|error| error.code, |()| 0))
        .collect();
    assert_eq!(codes, [0, 6, 0]);
}

#[tokio::test]
async fn large_reads_come_in_parts_by_the_other_client() {
    let lab = lab("read").await;
    let session = lab.client.session().unwrap();
    let mut parts = Vec::new();
    session.read_all(vec![], SECOND, |part| parts.push(part.len())).await.unwrap();
    assert_eq!(parts, [1, 1, 1]);
    assert_eq!(session.read(vec![], SECOND).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_server_that_answers_nothing_is_given_up_and_found_again() {
    let mut lab = lab("silent").await;
    lab.set(Mood::Silent);
    let session = lab.client.session().unwrap();
    for _ in 0..3 {
        let error = session.write(updates(1), Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, CallError::Unavailable(_)), "{error:?}");
    }
    let Event::Down(reason) = lab.event().await else {
        panic!("no Down")
    };
    assert!(reason.contains("has answered nothing"), "{reason}");
    lab.set(Mood::Good);
    assert!(matches!(lab.event().await, Event::Up));
    assert!(session.write(updates(1), SECOND).await.is_err(), "the former session stays over");
    assert!(lab.client.session().unwrap().write(updates(1), SECOND).await.is_ok());
}

#[tokio::test]
async fn a_lost_binding_is_noticed_by_the_next_call() {
    let mut lab = lab("forgetful").await;
    lab.set(Mood::Forgetful);
    let session = lab.client.session().unwrap();
    assert!(matches!(session.write(updates(1), SECOND).await, Err(CallError::Unavailable(_))));
    assert!(matches!(lab.event().await, Event::Down(_)));
    lab.set(Mood::Good);
    assert!(matches!(lab.event().await, Event::Up));
}

#[tokio::test]
async fn notices_arrive_and_the_end_of_the_stream_is_the_sessions() {
    let mut lab = lab("notices").await;
    let stream = lab.server.notices.lock().unwrap()[0].clone();
    let digest = pb::DigestList {
        digest_id: 5,
        ..Default::default()
    };
    let update = Some(stream_message_response::Update::Digest(digest));
    stream.send(Ok(pb::StreamMessageResponse { update })).await.unwrap();
    assert!(matches!(lab.event().await, Event::Digest(found) if found.digest_id == 5));
    stream.send(Err(Status::unavailable("going down"))).await.unwrap();
    assert!(matches!(lab.event().await, Event::Down(_)));
    assert!(matches!(lab.event().await, Event::Up), "it connects again");
}
