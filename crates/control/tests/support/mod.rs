//! What the tests of listeners and clients share: a service whose replies are decided by its commands, and addresses.
#![allow(dead_code)]

use shunt_control::{Sender, Service};
use shunt_rtpproxy::framing::ControlAddress;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;

/// `hold …` waits until it is released, `none` has no reply, `panic` panics, `I` has an info reply, all others are echoed.
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
        if text.starts_with("hold") {
            self.release.acquire().await.unwrap().forget();
        }
        self.running.fetch_sub(1, SeqCst);
        match &text[..] {
            "none" => None,
            "panic" => panic!("asked for"),
            "who" => Some(sender.ip().map_or("nobody".into(), |ip| ip.to_string().into_bytes())),
            "I" => Some(INFO.into()),
            _ => Some(format!("r{text}").into_bytes()),
        }
    }

    fn on_repetition(&self) {
        self.repeated.fetch_add(1, SeqCst);
    }
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
