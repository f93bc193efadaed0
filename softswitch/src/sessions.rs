//! Subscribed clients: their notices, and the owner of the tables.

use crate::peer::Peer;
use crate::plane::ports::Program;
use shunt_bfrt::pb::{self, set_forwarding_pipeline_config_request::Action, stream_message_response::Update};
use shunt_bfrt::{BfrtError, Code};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tonic::Status;

/// Most messages that wait for a client to read them.
pub const QUEUE: usize = 4096;

pub type Message = Result<pb::StreamMessageResponse, Status>;

/// Progress of a client's reset of all tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WarmInit {
    #[default]
    Initial,
    Started,
    Finished,
}

struct Client {
    wants: pb::subscribe::Notifications,
    queue: mpsc::Sender<Message>,
    connection: u64,
    /// Whether the configuration lets its peer use the tables.
    allowed: bool,
    /// The program that it owns.
    bound: Option<Program>,
    warm_init: WarmInit,
}

impl Client {
    fn send(&self, update: Update) -> bool {
        self.queue.try_send(Ok(pb::StreamMessageResponse { update: Some(update) })).is_ok()
    }
}

/// The next step of a reset of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Clear all tables and report that the reset has begun.
    pub begin: bool,
    /// Report that it has ended, after clearing the tables if `clear`.
    pub end: bool,
    pub clear: bool,
}

/// All clients.
pub struct Sessions {
    programs: Vec<String>,
    clients: Mutex<HashMap<u32, Client>>,
}

impl Sessions {
    /// Makes an empty list. `programs`: the names of the served programs.
    #[must_use]
    pub fn new(programs: Vec<String>) -> Self {
        Self {
            programs,
            clients: Mutex::default(),
        }
    }

    /// Returns the names of the served programs.
    #[must_use]
    pub fn programs(&self) -> &[String] {
        &self.programs
    }

    fn program(&self, name: &str) -> Option<Program> {
        self.programs.iter().position(|program| program == name)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u32, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client. `allowed`: whether the configuration lets its peer use the tables.
    ///
    /// # Errors
    /// Another client has its id.
    pub fn subscribe(
        &self,
        id: u32,
        wants: pb::subscribe::Notifications,
        queue: mpsc::Sender<Message>,
        peer: &Peer,
        allowed: bool,
    ) -> Result<(), BfrtError> {
        let mut clients = self.clients();
        if clients.contains_key(&id) {
            return Err(BfrtError::new(Code::Invalid, "Can't have two clients with the same client id"));
        }
        let client = Client {
            wants,
            queue,
            connection: peer.connection,
            allowed,
            bound: None,
            warm_init: WarmInit::default(),
        };
        client.send(Update::Subscribe(pb::Subscribe {
            status: Some(shunt_bfrt::google::rpc::Status::default()),
            ..pb::Subscribe::default()
        }));
        clients.insert(id, client);
        tracing::info!("client {id} subscribed");
        Ok(())
    }

    /// Removes a client whose stream has ended. Returns the program that it owned.
    pub fn forget(&self, id: u32) -> Option<Program> {
        let bound = self.clients().remove(&id).and_then(|client| client.bound);
        tracing::info!("client {id} left{}", if bound.is_some() { ", its binding with it" } else { "" });
        bound
    }

    /// Returns whether any client owns a program.
    #[must_use]
    pub fn has_owner(&self, program: Program) -> bool {
        self.clients().values().any(|client| client.bound == Some(program))
    }

    /// Returns whether a client wants idle notices.
    #[must_use]
    pub fn wants_idle(&self, id: u32) -> bool {
        self.clients()
            .get(&id)
            .is_some_and(|client| client.wants.enable_idletimeout_notifications)
    }

    /// Returns the program whose tables a client may read and write: the one that it names, or the one that it is bound to. Requests must
    /// come over the connection of the subscription, from a peer that `owners` names.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn authorise(&self, id: u32, target: Option<&pb::TargetDevice>, p4_name: &str, peer: &Peer) -> Result<Program, BfrtError> {
        let device = target.map_or(0, |target| target.device_id);
        let clients = self.clients();
        let client = clients.get(&id);
        let program = if client.is_none() || !p4_name.is_empty() {
            let Some(program) = self.program(p4_name).filter(|_| device == 0) else {
                return Err(BfrtError::new(
                    Code::NotFound,
                    format!("Unable to obtain BF_RT info for ({})", shown(p4_name)),
                ));
            };
            if client.is_none() {
                let text = format!("Client {id} is not subscribed: Read and Write need a StreamChannel with a subscription.");
                return Err(BfrtError::new(Code::Denied, text));
            }
            program
        } else {
            let Some(program) = client.and_then(|client| client.bound) else {
                return Err(BfrtError::new(Code::Unknown, "Unable to get bound_program"));
            };
            if device != 0 {
                let text =
                    format!("The device id retrieved for this client connection (0) does not match the device id {device} passed in");
                return Err(BfrtError::new(Code::Invalid, text));
            }
            program
        };
        if let Some(client) = client {
            check_connection(id, client, peer)?;
            if !client.allowed {
                return Err(not_named(id, "read or write"));
            }
        }
        check_pipe(target)?;
        Ok(program)
    }

    /// Binds a client to the program, so that it owns the tables. `allowed`: whether the configuration lets its peer.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn bind(&self, request: &pb::SetForwardingPipelineConfigRequest, peer: &Peer, allowed: bool) -> Result<(), BfrtError> {
        let mut clients = self.clients();
        let id = request.client_id;
        let owner_of = |program| clients.iter().find(|(_, client)| client.bound == Some(program)).map(|(id, _)| *id);
        let owners: Vec<Option<u32>> = (0..self.programs.len()).map(owner_of).collect();
        let client = clients
            .get_mut(&id)
            .ok_or_else(|| BfrtError::new(Code::Unavailable, format!("Unknown client. Client_id:{id}")))?;
        let [config] = &request.config[..] else {
            return Err(BfrtError::new(Code::Invalid, "Exactly one config message required."));
        };
        let program = self.program(&config.p4_name);
        if let Some(owner) = program.and_then(|program| owners[program]) {
            return Err(BfrtError::new(
                Code::Exists,
                format!("Client ID {id} trying to bind but Client ID {owner} already owns this P4"),
            ));
        }
        let Some(program) = program.filter(|_| request.device_id == 0) else {
            return Err(BfrtError::new(
                Code::NotFound,
                format!("Failed to find BfRtInfo for program {}", shown(&config.p4_name)),
            ));
        };
        check_connection(id, client, peer)?;
        if !allowed {
            return Err(not_named(id, "own"));
        }
        client.bound = Some(program);
        tracing::info!("client {id} bound to {}", config.p4_name);
        Ok(())
    }

    /// Returns the step for a request to reset all tables, which only their owner may send.
    ///
    /// # Errors
    /// The reason why nothing is done.
    pub fn reset(&self, request: &pb::SetForwardingPipelineConfigRequest, peer: &Peer) -> Result<Reset, BfrtError> {
        let mut names: Vec<&str> = request.config.iter().map(|config| config.p4_name.as_str()).collect();
        let known = names.iter().all(|name| self.program(name).is_some());
        names.dedup();
        if request.device_id != 0 || names.len() < request.config.len() || !known {
            return Err(BfrtError::new(Code::Invalid, "Invalid device config sent"));
        }
        let id = request.client_id;
        let mut clients = self.clients();
        let Some(client) = clients.get_mut(&id) else {
            return Err(BfrtError::new(
                Code::Denied,
                format!("Client {id} is not subscribed: a reset needs the client that is bound."),
            ));
        };
        check_connection(id, client, peer)?;
        if client.bound.is_none() {
            return Err(BfrtError::new(
                Code::Denied,
                format!("Client {id} is not bound: a reset needs the client that is bound."),
            ));
        }
        let mut reset = Reset {
            begin: false,
            end: false,
            clear: false,
        };
        match request.action() {
            Action::ReconcileAndWarmInitEnd => {
                return Err(BfrtError::new(Code::Unsupported, "Reconcile and warmInitEnd not supported"));
            }
            Action::VerifyAndWarmInitBegin | Action::VerifyAndWarmInitBeginAndEnd => {
                if client.warm_init == WarmInit::Started {
                    return Err(BfrtError::new(Code::Unavailable, "Warm_init in process."));
                }
                reset.begin = true;
                reset.end = request.action() == Action::VerifyAndWarmInitBeginAndEnd;
            }
            Action::WarmInitEnd => {
                if !request.config.is_empty() {
                    return Err(BfrtError::new(Code::Invalid, "Commit msg cannot contain any config."));
                }
                if client.warm_init == WarmInit::Finished {
                    let text = "Already warm_init_finished. Cannot perform WARM_INIT_END again";
                    return Err(BfrtError::new(Code::Unavailable, text));
                }
                reset.clear = client.warm_init == WarmInit::Initial;
                reset.end = true;
            }
            Action::Bind | Action::Verify => {}
        }
        if reset.end {
            client.warm_init = WarmInit::Finished;
        } else if reset.begin {
            client.warm_init = WarmInit::Started;
        }
        Ok(reset)
    }

    /// Sends a message to every client.
    pub fn tell_all(&self, kind: pb::SetForwardingPipelineConfigResponseType) {
        let response = pb::SetForwardingPipelineConfigResponse {
            set_forwarding_pipeline_config_response_type: kind.into(),
        };
        for client in self.clients().values() {
            client.send(Update::SetForwardingPipelineConfigResponse(response));
        }
    }

    /// Sends digests to the client that is bound to a program, if it wants any.
    pub fn send_digests(&self, program: Program, digests: Vec<pb::DigestList>) {
        let clients = self.clients();
        let Some((id, client)) = clients
            .iter()
            .find(|(_, client)| client.bound == Some(program) && client.wants.enable_learn_notifications)
        else {
            return;
        };
        for digest in digests {
            if !client.send(Update::Digest(digest)) {
                tracing::warn!("client {id} does not read its stream: digests are lost");
                return;
            }
        }
    }

    /// Sends an idle notice. Returns whether it fitted into the queue.
    pub fn send_idle(&self, id: u32, notice: pb::IdleTimeoutNotification) -> bool {
        let active = notice.r#type() == pb::idle_timeout_notification::NotificationType::EntryActive;
        match self.clients().get(&id) {
            Some(client) if active && !client.wants.enable_entry_active_notifications => true,
            Some(client) => client.send(Update::IdleTimeoutNotification(notice)),
            None => false,
        }
    }
}

/// Returns the beginning of a name from a client, because an answer must not become as long as a request.
fn shown(name: &str) -> String {
    const LENGTH: usize = 64;
    let cut: String = name.chars().take(LENGTH).collect();
    if cut.len() < name.len() { cut + "…" } else { cut }
}

/// Returns the error for a client whose peer the configuration does not name.
fn not_named(id: u32, what: &str) -> BfrtError {
    let text = format!("Client {id} may not {what} the tables: softswitch.owners does not name how it is connected.");
    tracing::warn!("refused: {text}");
    BfrtError::new(Code::Denied, text)
}

/// Checks that requests come over the connection of the subscription.
fn check_connection(id: u32, client: &Client, peer: &Peer) -> Result<(), BfrtError> {
    if client.connection == peer.connection {
        return Ok(());
    }
    Err(BfrtError::new(
        Code::Denied,
        format!("Client {id} is subscribed on another connection."),
    ))
}

/// Checks the scope: the only one is all pipes. A message of zeros names none.
///
/// # Errors
/// Any other scope.
pub fn check_pipe(target: Option<&pb::TargetDevice>) -> Result<(), BfrtError> {
    match target {
        Some(target) if *target != pb::TargetDevice::default() && target.pipe_id != 0xffff => {
            let text = format!(
                "Tables are the same in all pipes here: the pipe is to be 0xffff, not {}.",
                target.pipe_id
            );
            Err(BfrtError::new(Code::Invalid, text))
        }
        _ => Ok(()),
    }
}
