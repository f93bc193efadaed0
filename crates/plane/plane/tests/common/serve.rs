//! The double's BF Runtime service.

use super::switch::{COOKIE, Switch};
use prost::Message as _;
use shunt_bfrt::envelope::{ReadRequest, ReadResponse, WriteRequest};
use shunt_bfrt::google::rpc;
use shunt_bfrt::pb::bf_runtime_server::BfRuntime;
use shunt_bfrt::pb::{self, stream_message_response};
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

fn report(message: &str, errors: &[Result<(), (i32, &'static str)>]) -> Result<(), Status> {
    let Some(last) = errors.iter().rposition(Result::is_err) else {
        return Ok(());
    };
    let details = errors[..=last].iter().map(|error| {
        let (canonical_code, message) = error.err().unwrap_or((0, ""));
        let error = pb::Error {
            canonical_code,
            message: message.into(),
            ..Default::default()
        };
        prost_types::Any {
            type_url: "type.googleapis.com/bfrt_proto.Error".into(),
            value: error.encode_to_vec(),
        }
    });
    let status = rpc::Status {
        code: 2,
        details: details.collect(),
        ..Default::default()
    };
    Err(Status::with_details(tonic::Code::Unknown, message, status.encode_to_vec().into()))
}

#[tonic::async_trait]
impl BfRuntime for Switch {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<ReadResponse, Status>> + Send>>;
    type StreamChannelStream = ReceiverStream<Result<pb::StreamMessageResponse, Status>>;

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        let request = request.into_inner();
        let lock = self.lock(request.client_id);
        let _one_call = lock.lock().await;
        let faults = self.state().faults;
        if faults.dead {
            return std::future::pending().await;
        }
        let breaks = self.breaks();
        if breaks == Some(false) {
            return Err(Status::unavailable("broken"));
        }
        let results: Vec<_> = request.updates.iter().map(|update| self.apply(update)).collect();
        self.state().writes += 1;
        if breaks.is_some() {
            return Err(Status::unavailable("broken"));
        }
        if faults.mute {
            return std::future::pending().await;
        }
        report("Write Error Status", &results)?;
        Ok(Response::new(pb::WriteResponse::default()))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let lock = self.lock(request.client_id);
        let _one_call = lock.lock().await;
        let faults = self.state().faults;
        if faults.dead {
            return std::future::pending().await;
        }
        tokio::time::sleep(faults.slow_read).await;
        self.state().reads += 1;
        let (mut entities, mut results) = (Vec::new(), Vec::new());
        for entity in &request.entities {
            match self.answer(entity) {
                Ok(found) => {
                    entities.extend(found);
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        tokio::time::sleep(faults.slow_entry * entities.len() as u32).await;
        // What was found comes before the error, all in one message.
        let mut parts = vec![Ok(ReadResponse {
            entities,
            ..Default::default()
        })];
        parts.extend(report("Read Error Status", &results).err().map(Err));
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<pb::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::SetForwardingPipelineConfigResponse>, Status> {
        let id = request.get_ref().client_id;
        let mut state = self.state();
        state.bound.push(id);
        state.cookie = Some(id & COOKIE);
        Ok(Response::new(pb::SetForwardingPipelineConfigResponse::default()))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<pb::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<pb::GetForwardingPipelineConfigResponse>, Status> {
        let profile = pb::forwarding_pipeline_config::Profile {
            context: self.context.clone(),
            ..Default::default()
        };
        let config = pb::ForwardingPipelineConfig {
            p4_name: "relay".into(),
            bfruntime_info: self.documents[0].clone(),
            profiles: vec![profile],
        };
        Ok(Response::new(pb::GetForwardingPipelineConfigResponse {
            config: vec![config],
            non_p4_config: Some(pb::NonP4Config {
                bfruntime_info: self.documents[1].clone(),
            }),
        }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<pb::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, receiver) = mpsc::channel(64);
        let first = requests.next().await.unwrap()?;
        let reply = pb::StreamMessageResponse {
            update: Some(stream_message_response::Update::Subscribe(pb::Subscribe::default())),
        };
        sender.send(Ok(reply)).await.unwrap();
        self.state().streams.insert(first.client_id, sender);
        tokio::spawn(async move { while let Some(Ok(_)) = requests.next().await {} });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
