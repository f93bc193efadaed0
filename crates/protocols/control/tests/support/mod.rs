//! What the tests of listeners and clients share: a service whose replies are decided by its commands, listeners of it, and addresses.
#![allow(dead_code)]

pub mod served;

use shunt_control::{Kind, Sender, Service};
use shunt_rtpproxy::framing::ControlAddress;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;

/// what contains `hold` waits until it is released, `none` has no reply, `panic` panics, `I` has an info reply, all others are echoed. Of a dictionary
/// it is the value of `command` that counts, and its echo is the dictionary itself.
pub struct Echo {
    pub executed: Mutex<Vec<String>>,
    pub repeated: AtomicUsize,
    pub running: AtomicUsize,
    pub most: AtomicUsize,
    pub release: Semaphore,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            executed: Mutex::default(),
            repeated: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            release: Semaphore::new(0),
        }
    }
}

pub const INFO: &str = "sessions created: 1\nactive sessions: 1\nactive streams: 2\npackets received: 3\npackets transmitted: 3";

impl Service for Echo {
    async fn execute(&self, command: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let text = String::from_utf8_lossy(command).into_owned();
        self.executed.lock().unwrap().push(text.clone());
        self.most.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        let asked = asked(&text);
        if asked.contains("hold") {
            self.release.acquire().await.unwrap().forget();
        }
        self.running.fetch_sub(1, SeqCst);
        match asked {
            "none" => None,
            "panic" => panic!("asked for"),
            "who" => Some(sender.ip().map_or("nobody".into(), |ip| ip.to_string().into_bytes())),
            "I" => Some(INFO.into()),
            _ if is_dictionary(&text) => Some(command.to_vec()),
            _ => Some(format!("r{text}").into_bytes()),
        }
    }

    /// `end …` ends something, `new …` begins something.
    fn kind(&self, command: &[u8]) -> Kind {
        match command {
            [b'e', b'n', b'd', ..] => Kind::Ends,
            [b'n', b'e', b'w', ..] => Kind::Begins,
            _ => Kind::Continues,
        }
    }

    fn on_repetition(&self) {
        self.repeated.fetch_add(1, SeqCst);
    }
}

fn is_dictionary(text: &str) -> bool {
    text.starts_with(['d', '{'])
}

fn asked(text: &str) -> &str {
    if !is_dictionary(text) {
        return text;
    }
    let after = |mark| text.split_once(mark).map_or("", |(_, rest)| rest);
    let bencode = || {
        let (length, rest) = after("7:command").split_once(':')?;
        rest.get(..length.parse().ok()?)
    };
    if text.starts_with('{') {
        after("\"command\":\"").split('"').next().unwrap()
    } else {
        bencode().unwrap_or("")
    }
}

/// An NG command in bencode, with an SDP of so many bytes.
pub fn bencode(command: &str, sdp: usize) -> String {
    format!("d3:sdp{sdp}:{}7:command{}:{command}e", sdp_of(sdp), command.len())
}

/// The same in JSON.
pub fn json(command: &str, sdp: usize) -> String {
    format!("{{\"sdp\":\"{}\",\"command\":\"{command}\"}}", sdp_of(sdp))
}

/// Text with what could be taken for the end of a dictionary.
fn sdp_of(size: usize) -> String {
    "v=0 e } ".chars().cycle().take(size).collect()
}

impl Echo {
    pub fn executed(&self) -> Vec<String> {
        self.executed.lock().unwrap().clone()
    }

    /// Wait until so many commands were begun.
    pub async fn begun(&self, commands: usize) {
        until(|| self.executed.lock().unwrap().len() >= commands).await;
    }
}

pub async fn until(condition: impl Fn() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not happen in 10 s");
}

/// A folder for sockets that is removed with its contents.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shunt-control-{}-{}", std::process::id(), NUMBER.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn address(&self, kind: &str) -> ControlAddress {
        match kind {
            "unix" | "cunix" => format!("{kind}:{}", self.0.join("socket").display()),
            "udp6" | "tcp6" => format!("{kind}:[::1]:0"),
            _ => format!("{kind}:127.0.0.1:0"),
        }
        .parse()
        .unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
