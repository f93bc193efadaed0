//! The BF Runtime service: gives bf_switchd's answers from the data plane.

use crate::config::Owner;
use crate::limit;
use crate::options::Options;
use crate::peer::Peer;
use crate::plane::{OwnerSign, Plane};
use crate::read::Reader;
use crate::schema;
use crate::sessions::{Message, QUEUE, Sessions};
use crate::tables::Registry;
use crate::write::Writer;
use bytes::Bytes;
use shunt_bfrt::envelope::{ReadRequest, ReadResponse, WriteRequest};
use shunt_bfrt::pb::{self, bf_runtime_server::BfRuntime, set_forwarding_pipeline_config_request::Action, stream_message_request::Update};
use shunt_bfrt::schema::SchemaError;
use shunt_bfrt::{BfrtError, Code};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Most messages of one Read that wait for the client.
const READ_AHEAD: usize = 4;

/// A program, as its owner sees the data plane.
pub struct Program {
    pub tables: Arc<Registry>,
    /// The two documents of its schema.
    program_json: Bytes,
    fixed_json: Bytes,
}

impl Program {
    /// Makes one for each name. The first one has the conferences, because one client must assign the numbers of groups and rewrites.
    ///
    /// # Errors
    /// The tables do not fit the schema.
    pub fn all(names: &[String], plane: &Plane) -> Result<Vec<Self>, SchemaError> {
        let one = |program: usize| {
            let conferences = plane.conference_sizes().filter(|_| program == 0);
            let served = schema::serve(plane.relay.capacity(), conferences)?;
            Ok(Self {
                tables: Arc::new(Registry::new(served.schema, program)?),
                program_json: served.program_json.into(),
                fixed_json: served.fixed_json.into(),
            })
        };
        (0..names.len()).map(one).collect()
    }
}

/// State shared by all calls.
#[derive(Clone)]
pub struct Service {
    pub plane: Arc<Mutex<Plane>>,
    pub programs: Arc<[Program]>,
    pub sessions: Arc<Sessions>,
    pub owners: Arc<[Owner]>,
    pub owner_sign: OwnerSign,
}

impl Service {
    fn writer(&self, program: usize) -> Writer<'_> {
        Writer {
            plane: &self.plane,
            tables: &self.programs[program].tables,
            sessions: &self.sessions,
        }
    }

    /// Tells the programs in the kernel which tables have owners: filters apply while any client owns a program, entries exclude other
    /// sources while each program with ports has an owner.
    pub async fn show_owners(&self) {
        let with_ports: BTreeSet<usize> = self.plane.lock().await.notes.ports.programs().collect();
        let has_owner = |program: usize| self.sessions.has_owner(program);
        if (0..self.programs.len()).any(has_owner) {
            self.owner_sign.alive(with_ports.into_iter().all(has_owner));
        }
    }

    /// A client's subscription, which lasts as long as its stream.
    async fn serve_stream(self, mut requests: Streaming<pb::StreamMessageRequest>, sender: mpsc::Sender<Message>, peer: Peer) {
        let mut subscribed = None;
        let allowed = peer.may_own(&self.owners);
        loop {
            let request = match requests.message().await {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(status) => {
                    let _ = sender.send(Err(limit::refusal(status))).await;
                    break;
                }
            };
            let refused = match request.update {
                Some(Update::Subscribe(subscribe)) if subscribed.is_none() => {
                    let wants = subscribe.notifications.unwrap_or_default();
                    match self.sessions.subscribe(request.client_id, wants, sender.clone(), &peer, allowed) {
                        Ok(()) => {
                            subscribed = Some(request.client_id);
                            None
                        }
                        Err(error) => Some(error),
                    }
                }
                Some(Update::DigestAck(_)) => Some(BfrtError::new(Code::Unsupported, "Not yet implemented")),
                _ => None,
            };
            if let Some(error) = refused {
                let _ = sender.send(Err(error.into())).await;
                break;
            }
        }
        let Some(id) = subscribed else { return };
        let owned = self.sessions.forget(id);
        let mut plane = self.plane.lock().await;
        for idle in plane.notes.idle.iter_mut().flatten() {
            if idle.notify && idle.client_id == id {
                idle.enable = false;
            }
        }
        // Another client may have bound meanwhile: its allowed sources must stay.
        if let Some(program) = owned
            && !self.sessions.has_owner(program)
            && let Err(error) = plane.owner_gone(program)
        {
            tracing::error!("the owner is gone, and its source filters stay until their time is over: {error}");
        }
    }

    async fn reset(&self, request: &pb::SetForwardingPipelineConfigRequest, peer: &Peer) -> Result<(), BfrtError> {
        let reset = self.sessions.reset(request, peer)?;
        if reset.begin {
            // Later writes are the new state.
            self.clear_all().await?;
            self.sessions.tell_all(pb::SetForwardingPipelineConfigResponseType::WarmInitStarted);
        }
        if reset.clear {
            self.clear_all().await?;
        }
        if reset.end {
            self.sessions
                .tell_all(pb::SetForwardingPipelineConfigResponseType::WarmInitFinished);
        }
        Ok(())
    }

    /// Clears every table, as a device reset does.
    async fn clear_all(&self) -> Result<(), BfrtError> {
        for (at, program) in self.programs.iter().enumerate() {
            for table in program.tables.all() {
                match self.writer(at).clear(table).await {
                    Err(error) if error.code != Code::Unsupported => return Err(error),
                    _ => {}
                }
            }
        }
        for idle in self.plane.lock().await.notes.idle.iter_mut().flatten() {
            idle.enable = false;
        }
        tracing::info!("all tables cleared");
        Ok(())
    }
}

#[tonic::async_trait]
impl BfRuntime for Service {
    type ReadStream = ReceiverStream<Result<ReadResponse, Status>>;
    type StreamChannelStream = ReceiverStream<Message>;

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        let options = Options::of(request.metadata());
        let peer = Peer::of(&request);
        let request = request.into_inner();
        let program = self
            .sessions
            .authorise(request.client_id, request.target.as_ref(), &request.p4_name, &peer)?;
        self.writer(program).write(request, options).await.map(Response::new)
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let options = Options::of(request.metadata());
        let (sender, receiver) = mpsc::channel(READ_AHEAD);
        let peer = Peer::of(&request);
        let request = request.into_inner();
        match self
            .sessions
            .authorise(request.client_id, request.target.as_ref(), &request.p4_name, &peer)
        {
            Ok(program) => {
                let reader = Reader::new(Arc::clone(&self.plane), Arc::clone(&self.programs[program].tables), sender);
                tokio::spawn(async move { reader.read(request, options).await });
            }
            Err(error) => drop(sender.try_send(Err(error.into()))),
        }
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<pb::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::SetForwardingPipelineConfigResponse>, Status> {
        let peer = Peer::of(&request);
        let request = request.into_inner();
        if request.action() == Action::Bind {
            self.sessions.bind(&request, &peer, peer.may_own(&self.owners))?;
            self.show_owners().await;
        } else {
            self.reset(&request, &peer).await?;
        }
        Ok(Response::new(pb::SetForwardingPipelineConfigResponse::default()))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<pb::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::GetForwardingPipelineConfigResponse>, Status> {
        let device = request.into_inner().device_id;
        if device != 0 {
            return Err(BfrtError::new(Code::Invalid, format!("There is no device {device}")).into());
        }
        let profile = pb::forwarding_pipeline_config::Profile {
            profile_name: "pipe".into(),
            pipe_scope: vec![0, 1, 2, 3],
            ..Default::default()
        };
        let config = |(name, program): (&String, &Program)| pb::ForwardingPipelineConfig {
            p4_name: name.clone(),
            bfruntime_info: program.program_json.clone(),
            profiles: vec![profile.clone()],
        };
        let fixed = pb::NonP4Config {
            bfruntime_info: self.programs[0].fixed_json.clone(),
        };
        Ok(Response::new(pb::GetForwardingPipelineConfigResponse {
            config: self.sessions.programs().iter().zip(&*self.programs).map(config).collect(),
            non_p4_config: Some(fixed),
        }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<pb::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let peer = Peer::of(&request);
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(self.clone().serve_stream(request.into_inner(), sender, peer));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
