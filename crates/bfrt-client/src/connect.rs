//! Where the server is, and how a connection to it is made.

use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of headers. The details of a batch that failed are one: an error for each of its updates, up to the last that failed.
const LARGEST_HEADERS: u32 = 16 << 20;

/// A server and what to be there.
#[derive(Clone, Debug)]
pub struct Target {
    /// `unix:/PATH` or `HOST:PORT`.
    pub address: String,
    pub tls: Option<Tls>,
    pub device_id: u32,
    /// Name of the P4 program to be bound to.
    pub program: String,
    /// 1 to 2^24 - 1: bf_switchd keeps no more bits of it. The client for large reads is the next one.
    pub client_id: u32,
    /// After how long without any answer, though asked, a session is given up.
    pub patience: Duration,
}

/// PEM texts.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Who signs the server's certificate.
    pub authority: Option<String>,
    /// This side's certificate and its key.
    pub identity: Option<(String, String)>,
}

impl Target {
    /// A channel, connected.
    ///
    /// No keep-alive pings: a server with gRPC's default limits ends a connection that pings more often than every five minutes.
    ///
    /// # Errors
    /// When nobody listens there, or TLS fails.
    pub(crate) async fn connect(&self) -> Result<Channel, Error> {
        let address = match (self.address.starts_with("unix:"), &self.tls) {
            (true, _) => self.address.clone(),
            (false, None) => format!("http://{}", self.address),
            (false, Some(_)) => format!("https://{}", self.address),
        };
        let mut endpoint = Endpoint::from_shared(address)?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_max_header_list_size(LARGEST_HEADERS);
        if let Some(tls) = &self.tls {
            let mut config = ClientTlsConfig::new().with_enabled_roots();
            if let Some(authority) = &tls.authority {
                config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
            }
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config)?;
        }
        endpoint.connect().await
    }
}
