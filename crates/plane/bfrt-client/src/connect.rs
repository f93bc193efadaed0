//! The server's address, and connecting to it.

use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Size limit of headers in bytes. The details of a failed batch are one header, with an error for each update up to the last failed one.
const LARGEST_HEADERS: u32 = 16 << 20;

/// A server, and this client's identity there.
#[derive(Clone, Debug)]
pub struct Target {
    /// `unix:/PATH` or `HOST:PORT`.
    pub address: String,
    pub tls: Option<Tls>,
    pub device_id: u32,
    /// Name of the P4 program to bind to.
    pub program: String,
    /// 1 to 2^24 - 1, because bf_switchd keeps no more bits. The client for large reads has the next number.
    pub client_id: u32,
    /// A session without an answer to a request for this time ends.
    pub patience: Duration,
}

/// PEM texts.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority that signs the server's certificate.
    pub authority: Option<String>,
    /// This client's certificate and key.
    pub identity: Option<(String, String)>,
}

impl Target {
    /// Connects a channel.
    ///
    /// It sends no keep-alive pings: a server with gRPC's default limits closes a connection that pings more often than every five minutes.
    ///
    /// # Errors
    /// No server listens there, or TLS fails.
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
