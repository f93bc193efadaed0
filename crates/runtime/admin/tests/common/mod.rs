//! A directory that goes with its test, events, and a client of HTTP on a Unix socket.
#![allow(dead_code, clippy::unwrap_used)]

pub mod agent;

use serde_json::Value;
use shunt_admin::{CallFacts, CallWhat, Event, EventLog, Facts, LogSettings};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything takes that is not broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shunt-admin-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("events")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("admin.sock")
    }

    pub fn settings(&self) -> LogSettings {
        LogSettings::new(self.log())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The segments, the oldest first.
pub fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
    found.sort();
    found
}

pub fn event(call: &str) -> Event {
    Event::of_call(call.as_bytes(), Facts::Call(CallFacts::of(CallWhat::Resumed)))
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not so after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Wait until the log has written or dropped so many events of this epoch.
pub fn settled(log: &EventLog, count: u64) {
    wait_until("all events are written or dropped", || {
        let status = log.status();
        status.written + status.dropped >= count
    });
}

/// All lines from a number on that are kept.
pub fn read(log: &EventLog, from: Option<u64>) -> Vec<Value> {
    let mut follow = log.follow(from);
    let mut found = Vec::new();
    loop {
        let mut lines = Vec::new();
        follow.read(&mut lines).unwrap();
        if lines.is_empty() {
            return found;
        }
        assert!(lines.ends_with(b"\n"));
        assert!(found.len() < 1_000_000, "more lines than any test has written");
        found.extend(
            lines
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
                .map(|line| serde_json::from_slice::<Value>(line).unwrap()),
        );
    }
}

/// The Call-IDs of the events among lines; what else there is by its kind.
pub fn names(lines: &[Value]) -> Vec<String> {
    lines
        .iter()
        .map(|line| {
            match (
                line["kind"].as_str().unwrap(),
                line["call"].as_str(),
                line["facts"]["what"].as_str(),
            ) {
                (_, Some(call), _) => call.to_owned(),
                ("gap", ..) => format!("gap:{}", line["reason"].as_str().unwrap()),
                (kind, _, what) => what.unwrap_or(kind).to_owned(),
            }
        })
        .collect()
}

/// One request; the response's status, and the lines of its body.
pub struct Response {
    pub status: u16,
    reader: BufReader<UnixStream>,
    chunked: bool,
    length: usize,
}

impl Response {
    pub fn of(socket: &Path, method: &str, path: &str, body: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: shunt\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_ascii_lowercase());
        }
        let length = head
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |text| text.parse().unwrap());
        Self {
            status: head[0].split(' ').nth(1).unwrap().parse().unwrap(),
            chunked: head.iter().any(|line| line == "transfer-encoding: chunked"),
            reader,
            length,
        }
    }

    /// The whole body.
    pub fn text(&mut self) -> String {
        let mut bytes = vec![0; self.length];
        self.reader.read_exact(&mut bytes).unwrap();
        while self.chunked
            && let Some(chunk) = self.chunk()
        {
            bytes.extend(chunk);
        }
        String::from_utf8(bytes).unwrap()
    }

    pub fn json(&mut self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// One chunk of a stream; `None`: it has ended as it should.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut size = String::new();
        self.reader.read_line(&mut size).unwrap();
        assert!(!size.is_empty(), "the stream was cut off");
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes.truncate(size);
        (size > 0).then_some(bytes)
    }

    /// The lines of the next chunk.
    pub fn lines(&mut self) -> Vec<Value> {
        let chunk = self.chunk().unwrap_or_default();
        chunk
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// Whether the server has closed the connection in mid-stream.
    pub fn is_cut_off(&mut self) -> bool {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).is_err() || !rest.ends_with(b"0\r\n\r\n")
    }
}

pub fn get(socket: &Path, path: &str) -> (u16, Value) {
    let mut response = Response::of(socket, "GET", path, "");
    (response.status, response.json())
}
