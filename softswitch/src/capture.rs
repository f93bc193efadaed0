//! Captures: copies of what entries forward, for clients of a Unix socket.
//!
//! A client names relay ports, one JSON line at a time, and gets the packets of their entries: `{"ports": ["192.0.2.1:40000"]}`. Each line
//! replaces the one before and is a sign of life. Its capture ends with its connection, without a line for [`ALIVE`], and after
//! [`LONGEST`]. An answer is a length in four bytes, a header (`record`), and the frame, or a text if the capture is refused.
//!
//! The program copies into a ring and never waits. What a slow client does not take is counted as missed.

use crate::config::Owner;
use crate::listen::Bound;
use crate::peer::Stream;
use crate::plane::Plane;
use crate::ring::Wakeups;
use serde::Deserialize;
use shunt_abi::relay::{capture, capture_side};
use shunt_net::{Endpoint, octets};
use shunt_relay_table::flow_of;
use shunt_xdp::{Ring, from_bytes, monotonic_ns};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::server::Connected as _;

/// Records that are read from the kernel at a time, and that may wait for one client.
const RECORDS: usize = 512;
const WAITING: usize = 16_384;
/// How long a client may be silent, and how long a capture may last.
const ALIVE: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(3600);
const CLIENTS: usize = 8;
const PORTS: usize = 4096;
/// Bytes of a request.
const REQUEST: u64 = 512 * 1024;
/// The side of an answer that is a text.
const REFUSED: u8 = 255;

/// Returns the path of the socket for captures beside that of the tables.
#[must_use]
pub fn socket_beside(path: &Path) -> PathBuf {
    path.with_extension("capture")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    ports: Vec<SocketAddr>,
}

struct Client {
    ports: HashSet<Endpoint>,
    /// In ns of CLOCK_MONOTONIC.
    began: u64,
    sender: mpsc::Sender<Vec<u8>>,
    sent: u64,
    missed: u64,
    /// Of them, those that no answer has told yet.
    untold: u32,
}

/// The running captures.
pub struct Captures {
    plane: Arc<Mutex<Plane>>,
    owners: Arc<[Owner]>,
    ring: Mutex<Ring>,
    clients: Mutex<HashMap<u64, Client>>,
    begun: Notify,
}

impl Captures {
    #[must_use]
    pub fn new(plane: Arc<Mutex<Plane>>, owners: Arc<[Owner]>, ring: Ring) -> Self {
        Self {
            plane,
            owners,
            ring: Mutex::new(ring),
            clients: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Serves one socket without end.
    ///
    /// # Errors
    /// The runtime does not accept the socket.
    pub async fn serve(self: Arc<Self>, socket: Bound) -> io::Result<()> {
        let Bound::Unix(listener, _file) = socket else { return Ok(()) };
        let listener = tokio::net::UnixListener::from_std(listener)?;
        for id in 1u64.. {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let all = Arc::clone(&self);
                    tokio::spawn(async move { all.client(id, stream).await });
                }
                Err(error) => {
                    tracing::warn!("a connection for a capture cannot be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        Ok(())
    }

    /// Reads the ring while there are captures, and hands records to their clients.
    ///
    /// # Errors
    /// The ring cannot be watched.
    pub async fn read(self: Arc<Self>) -> io::Result<()> {
        let fd = self.ring.lock().await.poll_fd().map_err(io::Error::other)?;
        let mut wakeups = Wakeups::new(fd)?;
        loop {
            if self.clients.lock().await.is_empty() {
                self.begun.notified().await;
                continue;
            }
            wakeups.wait().await?;
            let batch = self.ring.lock().await.take(RECORDS);
            wakeups.was_full(batch.is_full);
            let now = wall_offset();
            let mut clients = self.clients.lock().await;
            for record in &batch.records {
                hand_out(&mut clients, record, now);
            }
        }
    }

    async fn client(self: Arc<Self>, id: u64, stream: UnixStream) {
        let credentials = stream.peer_cred().ok();
        let uid = credentials.map(|peer| peer.uid());
        let who = uid.map_or_else(|| "an unknown user".into(), |uid| format!("user {uid}"));
        let stream = Stream::Unix(stream);
        let allowed = uid == Some(0) || stream.connect_info().may_own(&self.owners);
        let Stream::Unix(stream) = stream else { return };
        let (read, mut write) = stream.into_split();
        let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(WAITING);
        let refuse = sender.clone();
        // Ends when nobody sends any more, or when the client is gone.
        let writer = tokio::spawn(async move {
            while let Some(record) = receiver.recv().await {
                if write.write_all(&record).await.is_err() {
                    return;
                }
            }
        });
        let ended = if allowed {
            self.follow(id, &who, BufReader::new(read), sender).await
        } else {
            drop(sender);
            Some(format!("{who} may not capture: softswitch.owners does not name it"))
        };
        let client = self.clients.lock().await.remove(&id);
        if let Some(client) = client {
            if let Err(error) = self.apply().await {
                tracing::error!("a capture has ended, and its entries are still captured: {error}");
            }
            let cause = ended.as_deref().unwrap_or("its client has closed");
            tracing::info!(
                "a capture of {who} has ended: {cause}; {} records sent, {} missed",
                client.sent,
                client.missed
            );
        }
        if let Some(text) = ended {
            let _ = refuse.try_send(refusal(&text));
        }
        drop(refuse);
        let abort = writer.abort_handle();
        if timeout(ALIVE, writer).await.is_err() {
            abort.abort();
        }
    }

    /// Follows a client's wishes. Returns why its capture ends, if not by its own will.
    async fn follow(
        &self,
        id: u64,
        who: &str,
        mut reader: BufReader<tokio::net::unix::OwnedReadHalf>,
        sender: mpsc::Sender<Vec<u8>>,
    ) -> Option<String> {
        let end = Instant::now() + LONGEST;
        loop {
            let mut line = Vec::new();
            let mut limited = tokio::io::AsyncReadExt::take(&mut reader, REQUEST);
            let silent = Instant::now() + ALIVE;
            match timeout_at(end.min(silent), limited.read_until(b'\n', &mut line)).await {
                Err(_) if Instant::now() >= end => return Some(format!("it has lasted {} s", LONGEST.as_secs())),
                Err(_) => return Some(format!("its client is silent for {} s", ALIVE.as_secs())),
                Ok(Err(_) | Ok(0)) => return None,
                Ok(Ok(_)) if line.last() != Some(&b'\n') => return Some("the request is cut off or too long".into()),
                Ok(Ok(_)) => {}
            }
            let wish: Wish = match serde_json::from_slice(&line) {
                Ok(wish) => wish,
                Err(error) => return Some(format!("the request is not understood: {error}")),
            };
            if wish.ports.len() > PORTS {
                return Some(format!("{} ports; a capture has at most {PORTS}", wish.ports.len()));
            }
            let ports: HashSet<Endpoint> = wish.ports.iter().map(|port| Endpoint::new(port.ip(), port.port())).collect();
            if let Err(text) = self.wish(id, who, ports, &sender).await {
                return Some(text);
            }
        }
    }

    async fn wish(&self, id: u64, who: &str, ports: HashSet<Endpoint>, sender: &mpsc::Sender<Vec<u8>>) -> Result<(), String> {
        {
            let mut clients = self.clients.lock().await;
            if let Some(client) = clients.get_mut(&id) {
                if client.ports == ports {
                    return Ok(());
                }
                client.ports = ports;
            } else {
                if clients.len() >= CLIENTS {
                    return Err(format!("{CLIENTS} captures are running already"));
                }
                if clients.is_empty() {
                    // What is left of an earlier capture.
                    let ring = self.ring.lock().await;
                    while ring.take(RECORDS).is_full {}
                }
                tracing::info!("{who} begins a capture of the packets at {} relay ports", ports.len());
                clients.insert(
                    id,
                    Client {
                        ports,
                        began: monotonic_ns(),
                        sender: sender.clone(),
                        sent: 0,
                        missed: 0,
                        untold: 0,
                    },
                );
                self.begun.notify_one();
            }
        }
        self.apply().await.map_err(|error| error.to_string())
    }

    /// Ends all captures.
    pub async fn end(&self) {
        self.clients.lock().await.clear();
        if let Err(error) = self.apply().await {
            tracing::error!("entries are still captured: {error}");
        }
    }

    /// Marks the entries of all wanted ports.
    async fn apply(&self) -> Result<(), shunt_relay_table::Fault> {
        let mut plane = self.plane.lock().await;
        let ports = self
            .clients
            .lock()
            .await
            .values()
            .flat_map(|client| client.ports.iter().copied())
            .collect();
        plane.relay.capture(ports)
    }
}

/// What is added to the kernel's monotonic time to have Unix time, in ns.
fn wall_offset() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    wall.wrapping_sub(monotonic_ns())
}

fn hand_out(clients: &mut HashMap<u64, Client>, record: &[u8], wall_offset: u64) {
    let Some(head) = from_bytes::<capture>(record) else { return };
    let frame = record.get(size_of::<capture>()..).unwrap_or_default();
    let frame = frame.get(..head.kept as usize).unwrap_or(frame);
    let port = flow_of(&head.key).dst;
    for client in clients.values_mut() {
        // Nobody knows whose packets the ring had no room for.
        let missed = if head.missed_since >= client.began { head.missed } else { 0 };
        client.missed += u64::from(missed);
        client.untold = client.untold.saturating_add(missed);
        if !client.ports.contains(&port) {
            continue;
        }
        let answer = answer(&head, frame, client.untold, wall_offset);
        if client.sender.try_send(answer).is_ok() {
            client.sent += 1;
            client.untold = 0;
        } else {
            client.missed += 1;
            client.untold = client.untold.saturating_add(1);
        }
    }
}

/// Returns an answer: length, Unix time in ns, length of the frame, missed records, side, IP version, ports and addresses of the packet as
/// it came, all in network byte order, and the frame.
fn answer(head: &capture, frame: &[u8], missed: u32, wall_offset: u64) -> Vec<u8> {
    let flow = flow_of(&head.key);
    let side = if head.side == capture_side::CAPTURE_CAME.0 { 0 } else { 1 };
    let mut bytes = vec![0; 4];
    bytes.extend(head.time.wrapping_add(wall_offset).to_be_bytes());
    bytes.extend(head.length.to_be_bytes());
    bytes.extend(missed.to_be_bytes());
    bytes.extend([side, if flow.is_v6() { 6 } else { 4 }]);
    bytes.extend(flow.src.port.to_be_bytes());
    bytes.extend(flow.dst.port.to_be_bytes());
    bytes.extend(octets(flow.src.addr).padded());
    bytes.extend(octets(flow.dst.addr).padded());
    bytes.extend(frame);
    finished(bytes)
}

fn refusal(text: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4 + 8 + 4 + 4];
    bytes.push(REFUSED);
    bytes.extend([0; 1 + 4 + 32]);
    bytes.extend(text.as_bytes());
    finished(bytes)
}

fn finished(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}
