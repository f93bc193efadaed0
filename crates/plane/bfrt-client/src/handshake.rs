//! The start of a session: subscription, schema, binding.

use crate::connect::Target;
use crate::session::timed;
use crate::writes::Writes;
use bytes::Bytes;
use shunt_bfrt::pb::bf_runtime_client::BfRuntimeClient;
use shunt_bfrt::pb::{self, stream_message_request, stream_message_response};
use shunt_bfrt::schema::Schema;
use shunt_standby::Fence;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(30);
const BIND_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn client(channel: Channel) -> BfRuntimeClient<Channel> {
    BfRuntimeClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

pub(crate) type Subscribed = (Streaming<pb::StreamMessageResponse>, mpsc::Sender<pb::StreamMessageRequest>);

pub(crate) async fn subscribe(
    client: &mut BfRuntimeClient<Channel>,
    target: &Target,
    client_id: u32,
    notices: bool,
) -> Result<Subscribed, String> {
    let subscription = pb::Subscribe {
        device_id: target.device_id,
        notifications: Some(pb::subscribe::Notifications {
            enable_learn_notifications: notices,
            enable_idletimeout_notifications: notices,
            enable_entry_active_notifications: notices,
            ..Default::default()
        }),
        ..Default::default()
    };
    let (sender, receiver) = mpsc::channel(1);
    let first = pb::StreamMessageRequest {
        client_id,
        update: Some(stream_message_request::Update::Subscribe(subscription)),
    };
    let _ = sender.try_send(first); // a new channel has room for one
    let answer = async {
        let mut stream = client
            .stream_channel(ReceiverStream::new(receiver))
            .await
            .map_err(|status| status.to_string())?
            .into_inner();
        match stream
            .message()
            .await
            .map_err(|status| status.to_string())?
            .and_then(|message| message.update)
        {
            Some(stream_message_response::Update::Subscribe(reply)) => match reply.status {
                Some(status) if status.code != 0 => Err(format!("subscription refused: {}", status.message)),
                _ => Ok(stream),
            },
            other => Err(format!("a subscription was answered with {other:?}")),
        }
    };
    let stream = tokio::time::timeout(SUBSCRIBE_TIMEOUT, answer).await;
    let stream = stream.map_err(|_| format!("{}: no answer to a subscription in {SUBSCRIBE_TIMEOUT:?}", target.address))??;
    Ok((stream, sender))
}

/// The schema, and the context.json of each pipeline.
pub(crate) async fn fetch_schema(client: &mut BfRuntimeClient<Channel>, target: &Target) -> Result<(Schema, Vec<Bytes>), String> {
    let request = pb::GetForwardingPipelineConfigRequest {
        device_id: target.device_id,
        client_id: target.client_id,
    };
    let reply = client.get_forwarding_pipeline_config(timed(request, SCHEMA_TIMEOUT)).await;
    let reply = reply.map_err(|status| format!("{}: {status}", target.address))?.into_inner();
    let Some(config) = reply.config.iter().find(|config| config.p4_name == target.program) else {
        let names: Vec<&str> = reply.config.iter().map(|config| config.p4_name.as_str()).collect();
        return Err(format!(
            "{} does not run program {}; it runs {}",
            target.address,
            target.program,
            names.join(", ")
        ));
    };
    let fixed = reply.non_p4_config.map(|config| config.bfruntime_info).unwrap_or_default();
    let documents: Vec<&[u8]> = [&config.bfruntime_info[..], &fixed[..]]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let texts: Result<Vec<&str>, _> = documents.into_iter().map(std::str::from_utf8).collect();
    let texts = texts.map_err(|error| format!("{}: the schema is no text: {error}", target.address))?;
    let schema = Schema::parse(&texts).map_err(|error| format!("{}: {error}", target.address))?;
    let contexts = config.profiles.iter().map(|profile| profile.context.clone());
    Ok((schema, contexts.filter(|context| !context.is_empty()).collect()))
}

/// Binds to the program. From here on the fence knows whether this client owns it.
pub(crate) async fn bind(writes: &Writes, target: &Target, fence: &Fence) -> Result<(), String> {
    let pass = fence.pass(Instant::now()).map_err(|error| error.to_string())?;
    match writes.bind(pass, target, BIND_TIMEOUT).await {
        Ok(()) => {
            fence.bound(Instant::now());
            Ok(())
        }
        Err(status) if status.code() == tonic::Code::AlreadyExists => {
            fence.unbound(true);
            Err(format!("another client owns program {}: {}", target.program, status.message()))
        }
        Err(status) => Err(format!("{}: {status}", target.address)),
    }
}
