//! Listening sockets.

use crate::config::{Listen, Tls};
use crate::peer::Stream;
use shunt_daemon::{SocketFile, listen_unix};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

const WAITING: usize = 64;

/// A bound socket. The file of a Unix socket is removed with it.
pub enum Bound {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Bound {
    /// Binds an address. `group`: of a Unix socket's file.
    ///
    /// # Errors
    /// The address is in use or not available.
    pub fn bind(address: &Listen, group: &str) -> io::Result<Self> {
        match address {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Listen::Unix(path) => listen_unix(path, group).map(|(listener, file)| Self::Unix(listener, file)),
        }
    }

    /// Returns the address in the form for clients.
    #[must_use]
    pub fn address(&self, asked: &Listen) -> String {
        match self {
            Self::Unix(..) => asked.to_string(),
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| asked.to_string(), |address| address.to_string()),
        }
    }
}

/// Returns the connections of all these sockets.
///
/// # Errors
/// The runtime does not accept a socket.
pub fn accept(sockets: Vec<Bound>) -> io::Result<ReceiverStream<io::Result<Stream>>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    for socket in sockets {
        let sender = sender.clone();
        match socket {
            Bound::Unix(listener, file) => {
                let listener = tokio::net::UnixListener::from_std(listener)?;
                tokio::spawn(async move {
                    let _file = file;
                    loop {
                        let accepted = listener.accept().await.map(|(stream, _)| Stream::Unix(stream));
                        if !pass_on(&sender, accepted).await {
                            return;
                        }
                    }
                });
            }
            Bound::Tcp(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::spawn(async move {
                    loop {
                        let accepted = listener.accept().await.and_then(|(stream, _)| {
                            stream.set_nodelay(true)?;
                            Ok(Stream::Tcp(stream))
                        });
                        if !pass_on(&sender, accepted).await {
                            return;
                        }
                    }
                });
            }
        }
    }
    Ok(ReceiverStream::new(receiver))
}

async fn pass_on(sender: &mpsc::Sender<io::Result<Stream>>, accepted: io::Result<Stream>) -> bool {
    match accepted {
        Ok(stream) => sender.send(Ok(stream)).await.is_ok(),
        Err(error) => {
            // For example a lack of file descriptors; the next connection may succeed.
            tracing::warn!("a connection cannot be accepted: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            true
        }
    }
}

/// Makes a server, with TLS if files are given. It requests client certificates if an authority is given.
///
/// # Errors
/// Names the file that cannot be read, or the files that do not belong together.
pub fn server(tls: Option<&Tls>) -> Result<Server, String> {
    let Some(files) = tls else { return Ok(Server::builder()) };
    let read = |path: &Option<PathBuf>, what: &str| -> Result<Vec<u8>, String> {
        let path = path.as_ref().ok_or_else(|| format!("tls: a server needs {what}"))?;
        fs::read(path).map_err(|error| format!("tls: {}: {error}", path.display()))
    };
    let identity = Identity::from_pem(
        read(&files.certificate_file, "certificate_file")?,
        read(&files.key_file, "key_file")?,
    );
    let mut config = ServerTlsConfig::new().identity(identity);
    if files.ca_file.is_some() {
        config = config.client_ca_root(Certificate::from_pem(read(&files.ca_file, "ca_file")?));
    }
    Server::builder().tls_config(config).map_err(|error| {
        let given: Vec<String> = [&files.certificate_file, &files.key_file, &files.ca_file]
            .into_iter()
            .flatten()
            .map(|path| path.display().to_string())
            .collect();
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("tls: {}: {cause}", given.join(", "))
    })
}
