//! An edge process with its control API, a browser made of the same library in its full role, and the plain side on sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

mod browser;

pub use browser::{Browser, Way};

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// A busy machine takes so long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Ports of tests that run at the same time.
static NEXT: AtomicU16 = AtomicU16::new(0);

pub struct Edge {
    process: Child,
    folder: PathBuf,
    pub address: SocketAddr,
}

impl Edge {
    /// `limits` in place of the usual ones.
    pub fn start(limits: &Value) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = u16::try_from(std::process::id() % 24).unwrap();
        let base = 24_000 + process * 400 + number % 20 * 20;
        let folder = std::env::temp_dir().join(format!("shunt-edge-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address: SocketAddr = format!("127.0.0.1:{base}").parse().unwrap();
        let mut all = json!({"sessions": 20, "media": 16, "unknown_packets": 100, "connections_per_address": 4, "connections": 16,
            "send_bitrate": 2_500_000, "receive_bitrate": 10_000_000, "connect": 30.0, "consent": 30.0});
        for (key, value) in limits.as_object().unwrap() {
            all[key] = value.clone();
        }
        let config = json!({"edge": {"listen": [address.to_string()], "tcp": true, "advertise": [], "address": "127.0.0.1",
            "ports": format!("{}-{}", base + 2, base + 19), "control": folder.join("control.sock"), "socket_group": "shunt", "limits": all}});
        let file = folder.join("edge.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_shunt-edge"))
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("READY "), "{line}");
        Self { process, folder, address }
    }

    /// The status and the body of an answer.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.folder.join("control.sock")).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let text = answer.split_once("\r\n\r\n").map(|(_, text)| text).unwrap_or_default();
        (status, serde_json::from_str(text).unwrap_or_default())
    }

    /// A session for an offer.
    pub fn create(&self, participant: &str, offer: &str) -> Value {
        let (status, answer) = self.ask(
            "POST",
            "/v1/sessions",
            &json!({"conference": "board", "participant": participant, "offer": offer}),
        );
        assert_eq!(status, 201, "{answer}");
        answer
    }

    pub fn session(&self, id: &str) -> Value {
        self.ask("GET", &format!("/v1/sessions/{id}"), &Value::Null).1
    }

    pub fn dropped(&self, what: &str) -> u64 {
        self.ask("GET", "/v1/status", &Value::Null).1["dropped"][what].as_u64().unwrap()
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The conference's address of one medium.
pub struct Plain {
    pub socket: UdpSocket,
    pub edge: SocketAddr,
}

impl Plain {
    /// For a medium of an answer.
    pub fn new(medium: &Value) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            edge: medium["rtp"].as_str().unwrap().parse().unwrap(),
        }
    }

    pub fn address(&self) -> String {
        self.socket.local_addr().unwrap().to_string()
    }

    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 2048];
        let (size, from) = self.socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from, self.edge);
        Some(buffer[..size].to_vec())
    }

    pub fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.edge).unwrap();
    }

    /// A plain RTP packet.
    pub fn rtp(payload_type: u8, ssrc: u32, sequence: u16, timestamp: u32, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x80, payload_type];
        packet.extend(sequence.to_be_bytes());
        packet.extend(timestamp.to_be_bytes());
        packet.extend(ssrc.to_be_bytes());
        packet.extend(payload);
        packet
    }
}

/// Tell the edge where each medium of an answer goes.
pub fn connect(edge: &Edge, answer: &Value) -> Vec<Plain> {
    let media = answer["media"].as_array().unwrap();
    let plain: Vec<Plain> = media.iter().map(Plain::new).collect();
    let named: Vec<Value> = media
        .iter()
        .zip(&plain)
        .map(|(medium, plain)| json!({"mid": medium["mid"], "rtp": plain.address()}))
        .collect();
    let id = answer["session"].as_str().unwrap();
    let (status, said) = edge.ask("PUT", &format!("/v1/sessions/{id}/media"), &json!({ "media": named }));
    assert_eq!(status, 204, "{said}");
    plain
}

/// Wait for a condition, with a browser that goes on meanwhile.
pub fn wait_for(browser: &mut Browser, what: &str, mut condition: impl FnMut(&mut Browser) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(browser) {
        assert!(Instant::now() < deadline, "not in time: {what}");
        browser.advance();
    }
}
