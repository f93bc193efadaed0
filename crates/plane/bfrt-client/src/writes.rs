//! Requests that change the server's tables. Each needs a pass of the fence.

use crate::connect::Target;
use crate::handshake::client;
use crate::session::timed;
use shunt_bfrt::envelope::WriteRequest;
use shunt_bfrt::pb;
use shunt_bfrt::pb::bf_runtime_client::BfRuntimeClient;
use shunt_standby::Pass;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// The sending client.
#[derive(Clone)]
pub(crate) struct Writes(BfRuntimeClient<Channel>);

impl Writes {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(client(channel))
    }

    pub(crate) async fn write(&self, pass: Pass, request: WriteRequest, timeout: Duration) -> Result<Response<pb::WriteResponse>, Status> {
        drop(pass);
        self.0.clone().write(timed(request, timeout)).await
    }

    pub(crate) async fn bind(&self, pass: Pass, target: &Target, timeout: Duration) -> Result<(), Status> {
        drop(pass);
        let request = pb::SetForwardingPipelineConfigRequest {
            device_id: target.device_id,
            client_id: target.client_id,
            action: pb::set_forwarding_pipeline_config_request::Action::Bind.into(),
            config: vec![pb::ForwardingPipelineConfig {
                p4_name: target.program.clone(),
                ..Default::default()
            }],
            ..Default::default()
        };
        self.0
            .clone()
            .set_forwarding_pipeline_config(timed(request, timeout))
            .await
            .map(drop)
    }
}
