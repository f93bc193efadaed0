//! One subscribed client: its connection, its stream and what it asks of the server.

use crate::Failure;
use crate::entries::Relay;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{ReadRequest, WriteRequest};
use shunt_bfrt::pb::bf_runtime_client::BfRuntimeClient;
use shunt_bfrt::pb::{self, stream_message_request, stream_message_response};
use shunt_bfrt::schema::Schema;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

const PROGRAM: &str = "relay";

pub struct Session {
    pub relay: Relay,
    client: BfRuntimeClient<Channel>,
    client_id: u32,
    /// The subscription lasts as long as both ends of the stream.
    _stream: Streaming<pb::StreamMessageResponse>,
    _requests: mpsc::UnboundedSender<pb::StreamMessageRequest>,
}

impl Session {
    /// Subscribe. The session does not bind, as only one client could: it names the program in every request.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn open(target: &str, client_id: u32) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(target.to_owned())?;
        let mut client = BfRuntimeClient::new(endpoint.connect().await?).max_decoding_message_size(usize::MAX);
        let (requests, receiver) = mpsc::unbounded_channel();
        let subscribe = pb::Subscribe {
            notifications: Some(pb::subscribe::Notifications {
                enable_learn_notifications: true,
                enable_idletimeout_notifications: true,
                enable_port_status_change_notifications: true,
                ..Default::default()
            }),
            ..Default::default()
        };
        let first = pb::StreamMessageRequest {
            client_id,
            update: Some(stream_message_request::Update::Subscribe(subscribe)),
        };
        requests.send(first).map_err(|_| Failure("the stream ended".into()))?;
        let mut stream = client.stream_channel(UnboundedReceiverStream::new(receiver)).await?.into_inner();
        match stream.message().await?.and_then(|reply| reply.update) {
            Some(stream_message_response::Update::Subscribe(_)) => {}
            other => return Err(Failure(format!("a subscription was answered with {other:?}"))),
        }
        Ok(Self {
            relay: fetch_relay(&mut client, client_id).await?,
            client,
            client_id,
            _stream: stream,
            _requests: requests,
        })
    }

    /// A request of these updates.
    pub fn request(&self, updates: Vec<Bytes>) -> WriteRequest {
        WriteRequest {
            target: Some(target()),
            client_id: self.client_id,
            updates,
            p4_name: PROGRAM.into(),
            ..Default::default()
        }
    }

    /// # Errors
    /// When an update failed, or the whole request.
    pub async fn write(&mut self, request: WriteRequest) -> Result<(), Status> {
        self.client.write(request).await.map(|_| ())
    }

    /// Read the whole relay table; for each message of the answer, its entries.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn read_all(&mut self) -> Result<Vec<usize>, Status> {
        let entry = pb::TableEntry {
            table_id: self.relay.table,
            table_flags: Some(pb::TableFlags {
                from_hw: true,
                ..Default::default()
            }),
            ..Default::default()
        };
        let entity = pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry)),
        };
        let request = ReadRequest {
            target: Some(target()),
            client_id: self.client_id,
            entities: vec![entity.encode_to_vec().into()],
            p4_name: PROGRAM.into(),
        };
        let mut answer = self.client.read(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(message) = answer.message().await? {
            found.push(message.entities.len());
        }
        Ok(found)
    }
}

async fn fetch_relay(client: &mut BfRuntimeClient<Channel>, client_id: u32) -> Result<Relay, Failure> {
    let request = pb::GetForwardingPipelineConfigRequest {
        client_id,
        ..Default::default()
    };
    let reply = client.get_forwarding_pipeline_config(request).await?.into_inner();
    let config = reply.config.iter().find(|config| config.p4_name == PROGRAM);
    let document = config.ok_or_else(|| Failure(format!("there is no program {PROGRAM}")))?;
    let text = std::str::from_utf8(&document.bfruntime_info).map_err(|error| Failure(error.to_string()))?;
    Relay::of(&Schema::parse(&[text])?)
}

fn target() -> pb::TargetDevice {
    pb::TargetDevice {
        device_id: 0,
        pipe_id: 0xffff,
        direction: 0xff,
        prsr_id: 0xff,
    }
}
