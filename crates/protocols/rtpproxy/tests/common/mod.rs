//! Reader of recorded control traffic in `tests/data`: exchanges between SIP servers (or a test client) and relays.
//!
//! Line formats (TIME is epoch seconds, BYTES a Python bytes literal):
//!     TIME UDP|TCP SRC > DST --> relay len=N BYTES          command, seen on the wire; `<--` is a reply
//!     TIME >> BYTES   and   TIME << BYTES                   the same, of a client that speaks to the relay directly
//!        then recv -> BYTES                                 more of the last reply (streams)
//!     NOTIFY-LISTENER TIME recv BYTES                       a time-out notice
#![allow(dead_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A command and what came back. Over UDP both carry the cookie.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// `udp`, `tcp`, `cunix` or `unix`.
    pub kind: String,
    /// Address of the relay's socket; `direct` where the recording does not say.
    pub relay: String,
    pub command: Vec<u8>,
    pub reply: Option<Vec<u8>>,
    pub line: usize,
}

impl Exchange {
    pub fn is_stream(&self) -> bool {
        self.kind != "udp"
    }

    /// The commands without cookie and line end: a stream's bytes may hold several.
    pub fn commands(&self) -> Vec<Vec<u8>> {
        if self.kind == "unix" {
            return vec![self.command.clone()];
        }
        if self.is_stream() {
            return self
                .command
                .split(|&b| b == b'\n')
                .filter(|line| !line.is_empty())
                .map(<[u8]>::to_vec)
                .collect();
        }
        vec![shunt_rtpproxy::split_datagram(&self.command).unwrap().1.to_vec()]
    }

    /// The reply without cookie and line end.
    pub fn reply_body(&self) -> Option<Vec<u8>> {
        let reply = self.reply.as_ref()?;
        if self.is_stream() {
            let end = reply.iter().rposition(|&b| b != b'\n').map_or(0, |at| at + 1);
            return Some(reply[..end].to_vec());
        }
        let (cookie, body) = shunt_rtpproxy::split_datagram(reply).unwrap();
        assert_eq!(cookie, shunt_rtpproxy::split_datagram(&self.command).unwrap().0);
        Some(body.to_vec())
    }
}

/// One recording.
pub struct Recording {
    pub name: String,
    pub exchanges: Vec<Exchange>,
    pub notices: Vec<Vec<u8>>,
}

pub fn recordings() -> Vec<Recording> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

pub fn recording(name: &str) -> Recording {
    recordings().into_iter().find(|recording| recording.name == name).unwrap()
}

fn read(path: &Path) -> Recording {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let mut reader = Reader::default();
    for (number, line) in text.lines().enumerate() {
        reader.line(number + 1, line);
    }
    Recording {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        exchanges: reader.exchanges,
        notices: reader.notices,
    }
}

#[derive(Default)]
struct Reader {
    exchanges: Vec<Exchange>,
    notices: Vec<Vec<u8>>,
    kind: Option<String>,
    direct: Option<usize>,
    waiting: HashMap<(String, String, Vec<u8>), Vec<usize>>,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) {
        if let Some(at) = line.find(" -s ").filter(|_| line.starts_with("# [")) {
            self.kind = line[at + 4..].split(':').next().map(str::to_owned);
        } else if let Some(rest) = line.strip_prefix("NOTIFY-LISTENER ") {
            self.notices.extend(literal(rest));
        } else if line.trim_start().starts_with("then recv -> ") {
            if let (Some(at), Some(data)) = (self.direct, literal(line)) {
                self.exchanges[at].reply.as_mut().unwrap().extend(data);
            }
        } else if line.contains(" NOTIFY relay-->proxy ") {
            self.notices.extend(literal(line));
        } else if line.contains(" relay len=") {
            self.wire(number, line);
        } else if let Some(data) = literal(line) {
            self.direct(number, line, data);
        }
    }

    fn direct(&mut self, number: usize, line: &str, data: Vec<u8>) {
        let kind = self.kind.clone().unwrap_or_else(|| "udp".into());
        match line.split(' ').nth(1) {
            Some(">>") if line.contains("SEND FAILED") => self.direct = None,
            Some(">>") => {
                self.direct = Some(self.exchanges.len());
                let relay = "direct".into();
                self.exchanges.push(Exchange {
                    kind,
                    relay,
                    command: data,
                    reply: None,
                    line: number,
                });
            }
            Some("<<") if !data.starts_with(b"<no reply") => {
                if let Some(at) = self.direct {
                    self.exchanges[at].reply = Some(data);
                }
            }
            _ => {}
        }
    }

    fn wire(&mut self, number: usize, line: &str) {
        let words: Vec<&str> = line.splitn(8, ' ').collect();
        let (kind, source, target, arrow) = (words[1].to_lowercase(), words[2], words[4], words[5]);
        let data = literal(line).unwrap_or_else(|| panic!("line {number}: no bytes"));
        let sent = arrow == "-->";
        let (client, relay) = if sent { (source, target) } else { (target, source) };
        let cookie = if kind == "udp" {
            data.split(|&b| b == b' ').next().unwrap().to_vec()
        } else {
            Vec::new()
        };
        let queue = self.waiting.entry((client.into(), relay.into(), cookie)).or_default();
        if sent {
            queue.push(self.exchanges.len());
            let relay = relay.into();
            self.exchanges.push(Exchange {
                kind,
                relay,
                command: data,
                reply: None,
                line: number,
            });
        } else if !queue.is_empty() {
            // Of two copies with one cookie it is the later that was answered (the first was lost); a stream answers in order.
            let at = if kind == "udp" { queue.pop().unwrap() } else { queue.remove(0) };
            self.exchanges[at].reply = Some(data);
        }
    }
}

/// The first Python bytes literal in a line.
fn literal(line: &str) -> Option<Vec<u8>> {
    let at = line.find("b'").into_iter().chain(line.find("b\"")).min()?;
    let quote = line.as_bytes()[at + 1];
    let mut bytes = line.as_bytes()[at + 2..].iter().copied();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next()? {
                b'n' => out.push(b'\n'),
                b'r' => out.push(b'\r'),
                b't' => out.push(b'\t'),
                b'x' => {
                    let hex = [bytes.next()?, bytes.next()?];
                    out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
                }
                other => out.push(other),
            },
            byte if byte == quote => return Some(out),
            byte => out.push(byte),
        }
    }
    None
}
