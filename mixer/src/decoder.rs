//! Trial decodes: a picture of each source is decoded once by a program of its own, beside the threads of media (docs/tiling.md).
//!
//! The program is FFmpeg, or what takes its options. It gets the picture on standard input, in a format that the codec says, and limits of time
//! and memory before it begins; it opens no file. One runs at a time, and what waits is bounded. Whatever becomes of it, sources keep their
//! tiles, unless it has read the picture and found fault with it, and finds none with one that is known to be right.

use crate::tilings::Codec;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;
use shunt_tiling::h261::mosaic::Mosaic;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::process::Command;
use tokio::time::timeout;

/// Pictures that wait at most.
pub const WAITING: usize = 64;
/// How long the program may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(15);
/// Processor seconds, KiB of memory, no files, no core; and a tenth of the share of what is urgent. With less, full cores would leave it none.
const LIMITED: &str = r#"ulimit -t 5 && ulimit -v 1048576 && ulimit -f 0 && ulimit -c 0 && exec nice -n 10 "$0" "$@""#;
/// What the shell says of a program that is not there, or is none.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// Octets of what the program says that are read.
const SAID: u64 = 16 << 10;
/// Characters of a message that are shown.
const SHOWN: usize = 120;

/// A grey picture of 16x16: x264, profile Baseline.
const GREY_H264: &[u8] = b"\0\0\0\x01\x67\x42\xc0\x0a\xdd\xe8\x40\0\0\x03\0\x40\0\0\x04\x03\xc4\x89\xe0\
    \0\0\0\x01\x68\xce\x0f\x2c\x80\0\0\0\x01\x65\x88\x84\x04\xbc\x9e";
/// A grey picture of 64x64: x265, profile Main.
const GREY_H265: &[u8] = b"\0\0\0\x01\x40\x01\x0c\x01\xff\xff\x04\x08\0\0\x03\0\x9f\xa8\0\0\x03\0\0\x1e\xba\x02\x40\
    \0\0\0\x01\x42\x01\x01\x04\x08\0\0\x03\0\x9f\xa8\0\0\x03\0\0\x1e\xa0\x20\x81\x05\x96\xea\xaf\x2b\x9a\x02\0\0\x03\0\x02\0\0\x03\0\x10\x10\
    \0\0\0\x01\x44\x01\xc1\x73\xc0\x89\0\0\0\x01\x28\x01\xaf\x78\xf8\xd1\xbd\xa0\xcc\xa3\xd3\xbd\x5b\x8c\0\0\x76\xc0";

/// A picture of a source, as a stream of its own.
#[derive(Debug)]
pub struct Sample {
    pub tiling: String,
    /// SSRCs of the tiled stream and of the source.
    pub stream: u32,
    pub source: u32,
    pub codec: Codec,
    pub octets: Vec<u8>,
}

/// What a program says of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Decoded,
    /// Its message.
    Undecodable(String),
    /// Why nothing is known.
    Unavailable(String),
}

/// How trial decodes have gone.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// `null`: nothing is decoded.
    pub decoder: Option<String>,
    pub decoded: u64,
    pub undecodable: u64,
    pub unavailable: u64,
    /// What the last one took.
    pub took_ms: Option<f64>,
    /// Why the last one has said nothing; `null`: it has.
    pub problem: Option<String>,
}

/// The program, and its figures.
#[derive(Debug)]
pub struct Decoder {
    figures: Mutex<Figures>,
    program: Option<String>,
}

impl Decoder {
    /// The name of a program on PATH, or its path.
    #[must_use]
    pub fn new(program: Option<String>) -> Self {
        let problem = program.as_deref().and_then(|program| find(program).err());
        let figures = Figures {
            decoder: program.clone(),
            problem,
            ..Figures::default()
        };
        Self {
            figures: Mutex::new(figures),
            program,
        }
    }

    #[must_use]
    pub fn figures(&self) -> Figures {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes a source's picture.
    pub async fn tries(&self, sample: &Sample) -> Outcome {
        let Some(program) = &self.program else {
            return Outcome::Unavailable("mixer.decoder names no program".into());
        };
        let began = tokio::time::Instant::now();
        let outcome = judge(program, sample.codec, &sample.octets).await;
        let mut figures = self.lock();
        figures.took_ms = Some((began.elapsed().as_secs_f64() * 1e4).round() / 10.0);
        match &outcome {
            Outcome::Decoded => figures.decoded += 1,
            Outcome::Undecodable(message) => {
                tracing::warn!(
                    "a picture of source {} of {} cannot be decoded: {message}",
                    sample.source,
                    sample.tiling
                );
                figures.undecodable += 1;
            }
            Outcome::Unavailable(why) => {
                if figures.problem.as_ref() != Some(why) {
                    tracing::warn!("sources are tiled without a trial decode: {why}");
                }
                figures.unavailable += 1;
            }
        }
        figures.problem = if let Outcome::Unavailable(why) = &outcome {
            Some(why.clone())
        } else {
            None
        };
        outcome
    }
}

/// A fault counts if the program finds none with a picture that has none.
async fn judge(program: &str, codec: Codec, octets: &[u8]) -> Outcome {
    let outcome = decode(program, codec, octets).await;
    if !matches!(outcome, Outcome::Undecodable(_)) {
        return outcome;
    }
    match decode(program, codec, &known(codec)).await {
        Outcome::Decoded => outcome,
        Outcome::Undecodable(message) => Outcome::Unavailable(format!("{program} cannot decode {codec:?}: {message}")),
        unavailable @ Outcome::Unavailable(_) => unavailable,
    }
}

/// A picture that is right.
fn known(codec: Codec) -> Vec<u8> {
    match codec {
        Codec::H261 => Mosaic::default().picture(0).bits,
        Codec::H264 => GREY_H264.to_vec(),
        Codec::H265 => GREY_H265.to_vec(),
    }
}

/// Where a program is.
fn find(program: &str) -> Result<PathBuf, String> {
    if program.contains('/') {
        let path = Path::new(program);
        return if path.is_file() {
            Ok(path.to_owned())
        } else {
            Err(format!("there is no {program}"))
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&folders).map(|folder| folder.join(program));
    candidates
        .find(|path| path.is_file())
        .ok_or(format!("there is no {program} on PATH"))
}

async fn decode(program: &str, codec: Codec, octets: &[u8]) -> Outcome {
    let path = match find(program) {
        Ok(path) => path,
        Err(why) => return Outcome::Unavailable(why),
    };
    let format = match codec {
        Codec::H261 => "h261",
        Codec::H264 => "h264",
        Codec::H265 => "hevc",
    };
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(LIMITED).arg(path);
    command.args([
        "-hide_banner",
        "-nostdin",
        "-loglevel",
        "error",
        "-xerror",
        "-err_detect",
        "crccheck+explode",
    ]);
    command.args(["-threads", "1", "-protocol_whitelist", "pipe", "-f", format, "-i", "pipe:0"]);
    command.args(["-map", "0:v", "-frames:v", "1", "-f", "framecrc", "pipe:1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir("/").kill_on_drop(true).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Unavailable(format!("{program} cannot be started: {error}")),
    };
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let exchange = async {
        let feed = async {
            if let Some(input) = &mut stdin {
                // It may end before it has read all.
                let _ = input.write_all(octets).await;
            }
            stdin = None;
        };
        let ((), out, said) = tokio::join!(feed, read(stdout), read(stderr));
        (child.wait().await, out, said)
    };
    match timeout(PATIENCE, exchange).await {
        Ok((Ok(status), out, said)) => outcome(program, status, &out, &said),
        Ok((Err(error), ..)) => Outcome::Unavailable(format!("{program}: {error}")),
        Err(_) => {
            // With what it has started. It may have ended meanwhile.
            let _ = group.map(|group| killpg(group, Signal::SIGKILL));
            Outcome::Unavailable(format!("{program} has said nothing in {} s", PATIENCE.as_secs()))
        }
    }
}

/// The beginning of what comes; the rest is read too, so that the program goes on.
async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut start = Vec::new();
    let mut limited = from.take(SAID);
    let _ = limited.read_to_end(&mut start).await;
    let _ = copy(&mut limited.into_inner(), &mut sink()).await;
    String::from_utf8_lossy(&start).into_owned()
}

fn outcome(program: &str, status: ExitStatus, out: &str, said: &str) -> Outcome {
    let mut faults = said.lines().filter(|line| !line.contains("warning:") && !line.trim().is_empty());
    let fault = faults.next().map(shown);
    match status.code() {
        None => Outcome::Unavailable(format!("{program} was ended: {status}")),
        Some(code) if NO_PROGRAM.contains(&code) => {
            let why = fault.unwrap_or_else(|| format!("exit code {code}"));
            Outcome::Unavailable(format!("{program} cannot be started: {why}"))
        }
        Some(0) => match fault {
            Some(fault) => Outcome::Undecodable(fault),
            // A line for each picture.
            None if out.lines().any(|line| line.starts_with("0,")) => Outcome::Decoded,
            None => Outcome::Undecodable("no picture comes out".into()),
        },
        Some(code) => Outcome::Undecodable(fault.unwrap_or_else(|| format!("exit code {code}"))),
    }
}

/// A message without the name of the part that says it ("[h264 @ 0x5628e4e07f40] "), of printable characters, and not too long.
fn shown(line: &str) -> String {
    let part = line.starts_with('[').then(|| line.split_once("] ")).flatten();
    let text = part.map_or(line, |(_, text)| text).trim();
    let text = text.chars().take(SHOWN);
    text.map(|one| if one == ' ' || one.is_ascii_graphic() { one } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{GREY_H264, GREY_H265, Outcome, SHOWN, outcome, shown};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const LINE: &str = "#dimensions 0: 16x16\n0,          0,          0,        1,      384, 0x6870c000\n";

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_message_is_short_and_printable() {
        assert_eq!(
            shown("[h264 @ 0x5628e4e07f40] error while decoding MB 0 7"),
            "error while decoding MB 0 7"
        );
        assert_eq!(shown("a\u{1b}[31mb\tc\u{fffd}"), "a?[31mb?c?");
        assert_eq!(shown(&"x".repeat(500)).len(), SHOWN);
    }

    #[test]
    fn only_a_program_that_has_ended_by_itself_finds_fault() {
        assert_eq!(outcome("f", exited(0), LINE, ""), Outcome::Decoded);
        assert_eq!(
            outcome("f", exited(0), LINE, "[h261 @ 0x1] warning: first frame is no keyframe\n"),
            Outcome::Decoded
        );
        assert_eq!(
            outcome("f", exited(0), LINE, "[h261 @ 0x1] Error at MB: 94\n"),
            Outcome::Undecodable("Error at MB: 94".into())
        );
        assert_eq!(
            outcome("f", exited(0), "#dimensions 0: 16x16\n", ""),
            Outcome::Undecodable("no picture comes out".into())
        );
        assert_eq!(outcome("f", exited(69), "", ""), Outcome::Undecodable("exit code 69".into()));
        assert!(matches!(
            outcome("f", exited(127), "", "nice: f: No such file"),
            Outcome::Unavailable(_)
        ));
        assert!(matches!(
            outcome("f", ExitStatus::from_raw(11), LINE, "error"),
            Outcome::Unavailable(_)
        ));
    }

    #[test]
    fn known_pictures_have_parameter_sets_and_a_slice() {
        assert_eq!(GREY_H264.windows(4).filter(|four| *four == [0, 0, 0, 1]).count(), 3);
        assert_eq!(GREY_H265.windows(4).filter(|four| *four == [0, 0, 0, 1]).count(), 4);
    }
}
