//! Time-out notices to SIP servers: one lasting connection for each notify socket, and a bounded queue before it.
#![forbid(unsafe_code)]

use shunt_rtpproxy::NotifyTarget;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const ATTEMPTS: u32 = 6;
/// Doubled after each attempt: a SIP server that restarts has three seconds.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const QUEUE: usize = 10_000;
const TARGETS: usize = 64;
/// A connection that nothing was sent on for so long is closed.
const IDLE: Duration = Duration::from_secs(600);
/// What is queued at the end of the process has so long to go out.
const GRACE: Duration = Duration::from_secs(1);

/// Which notify sockets a U may name.
#[derive(Clone, Debug, Default)]
pub struct Permit {
    allow: Option<Vec<NotifyTarget>>,
}

impl Permit {
    /// `None`: any Unix socket, any loopback address, and the address that the command came from.
    #[must_use]
    pub fn new(allow: Option<Vec<NotifyTarget>>) -> Self {
        Self { allow }
    }

    /// Whether a command of `peer` may name this socket.
    #[must_use]
    pub fn allows(&self, target: &NotifyTarget, peer: Option<IpAddr>) -> bool {
        match (&self.allow, target) {
            (Some(allow), target) => allow.contains(target),
            (None, NotifyTarget::Unix(_)) => true,
            (None, NotifyTarget::Tcp(address)) => address.ip().is_loopback() || peer == Some(address.ip()),
        }
    }
}

/// Sends notices, in order for each notify socket. What cannot be delivered within some seconds is logged and dropped.
#[derive(Debug, Default)]
pub struct Notifier {
    queues: HashMap<NotifyTarget, mpsc::Sender<Notice>>,
    tasks: JoinSet<()>,
}

impl Notifier {
    /// Queue a line ([`shunt_rtpproxy::notify_line`]). Needs the runtime.
    pub fn send(&mut self, target: &NotifyTarget, line: Vec<u8>) {
        self.send_or(target, line, Box::new(|_| {}));
    }

    /// The same; `failed` is called with the reason if it cannot be delivered.
    pub fn send_or(&mut self, target: &NotifyTarget, line: Vec<u8>, failed: Failed) {
        while self.tasks.try_join_next().is_some() {}
        self.queues.retain(|_, queue| !queue.is_closed());
        if !self.queues.contains_key(target) {
            if self.queues.len() >= TARGETS {
                tracing::error!("time-out notice to {target} is not sent: {TARGETS} other notify sockets are in use");
                failed(&format!("{target}: {TARGETS} other notify sockets are in use"));
                return;
            }
            let (queue, lines) = mpsc::channel(QUEUE);
            self.tasks.spawn(deliver_all(target.clone(), lines));
            self.queues.insert(target.clone(), queue);
        }
        let result = self.queues.get(target).map(|queue| queue.try_send(Notice { line, failed }));
        if let Some(Err(TrySendError::Full(notice) | TrySendError::Closed(notice))) = result {
            tracing::error!("time-out notice to {target} is not sent: {QUEUE} are waiting already");
            (notice.failed)(&format!("{target}: {QUEUE} notices are waiting already"));
        }
    }

    /// Send what is queued, if that is done within a second.
    pub async fn close(mut self) {
        self.queues.clear();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(GRACE, all).await.is_err() {
            tracing::warn!("time-out notices were not all delivered");
        }
    }
}

/// What to do when a notice cannot be delivered; it gets the reason.
pub type Failed = Box<dyn FnOnce(&str) + Send>;

/// A notice that waits.
struct Notice {
    line: Vec<u8>,
    failed: Failed,
}

enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    async fn open(target: &NotifyTarget) -> io::Result<Self> {
        match target {
            NotifyTarget::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            NotifyTarget::Tcp(address) => TcpStream::connect(address).await.map(Self::Tcp),
        }
    }

    /// Whether the other side has closed: then writing would seem to succeed, and the notice be lost. What it says is passed over.
    fn is_over(&self) -> bool {
        let mut buffer = [0; 512];
        loop {
            let got = match self {
                Self::Tcp(stream) => stream.try_read(&mut buffer),
                Self::Unix(stream) => stream.try_read(&mut buffer),
            };
            match got {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    async fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(line).await,
            Self::Unix(stream) => stream.write_all(line).await,
        }
    }
}

async fn deliver_all(target: NotifyTarget, mut lines: mpsc::Receiver<Notice>) {
    let mut connection = None;
    loop {
        match timeout(IDLE, lines.recv()).await {
            Ok(Some(notice)) => {
                if let Err(reason) = deliver(&target, &mut connection, &notice.line).await {
                    (notice.failed)(&format!("{target}: {reason}"));
                }
            }
            Ok(None) => return,
            // What has come meanwhile is still delivered.
            Err(_) => lines.close(),
        }
    }
}

async fn deliver(target: &NotifyTarget, connection: &mut Option<Connection>, line: &[u8]) -> Result<(), String> {
    let mut delay = FIRST_DELAY;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let result = timeout(CONNECT_TIMEOUT, write(target, connection, line)).await;
        let error = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        *connection = None;
        if attempt == ATTEMPTS {
            let shown = line.trim_ascii_end().escape_ascii();
            tracing::error!("time-out notice {shown} was not delivered to {target}: {error}");
            return Err(error);
        }
        sleep(delay).await;
        delay *= 2;
    }
}

async fn write(target: &NotifyTarget, connection: &mut Option<Connection>, line: &[u8]) -> io::Result<()> {
    // The runtime learns in between whether the other side has closed.
    tokio::task::yield_now().await;
    if connection.as_ref().is_some_and(Connection::is_over) {
        *connection = None;
    }
    let open = match connection.take() {
        Some(open) => open,
        None => Connection::open(target).await?,
    };
    connection.insert(open).write(line).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use shunt_rtpproxy::notify_line;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    fn tcp(address: &str) -> NotifyTarget {
        NotifyTarget::Tcp(address.parse().unwrap())
    }

    #[test]
    fn permission() {
        let (any, peer) = (Permit::default(), Some(IpAddr::from([192, 0, 2, 1])));
        assert!(any.allows(&tcp("127.0.0.1:9"), peer) && any.allows(&tcp("[::1]:9"), None) && any.allows(&tcp("192.0.2.1:9"), peer));
        assert!(any.allows(&NotifyTarget::Unix("/run/n.sock".into()), None));
        assert!(!any.allows(&tcp("192.0.2.2:9"), peer) && !any.allows(&tcp("192.0.2.1:9"), None));
        let one = Permit::new(Some(vec![tcp("192.0.2.2:9")]));
        assert!(one.allows(&tcp("192.0.2.2:9"), None) && !one.allows(&tcp("127.0.0.1:9"), peer));
        assert!(!Permit::new(Some(Vec::new())).allows(&NotifyTarget::Unix("/run/n.sock".into()), None));
    }

    #[tokio::test]
    async fn a_server_that_has_hung_up_gets_the_next_notice_on_a_new_connection() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = NotifyTarget::Tcp(server.local_addr().unwrap());
        let mut notifier = Notifier::default();
        for tag in ["T%201", "T2"] {
            notifier.send(&target, notify_line(tag.as_bytes()));
            let (mut stream, _) = server.accept().await.unwrap();
            let mut got = [0; 4];
            let size = stream.read(&mut got).await.unwrap();
            assert_eq!(&got[..size], notify_line(tag.as_bytes()));
            drop(stream);
            sleep(Duration::from_millis(20)).await;
        }
        notifier.close().await;
    }

    #[tokio::test]
    async fn queues_and_sockets_are_bounded() {
        let folder = std::env::temp_dir().join("shunt-no-such-folder");
        let mut notifier = Notifier::default();
        for n in 0..TARGETS + 10 {
            let target = NotifyTarget::Unix(folder.join(n.to_string()));
            notifier.send(&target, b"T\n".to_vec());
        }
        assert_eq!(notifier.queues.len(), TARGETS);
    }
}
