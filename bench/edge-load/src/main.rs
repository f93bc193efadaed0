//! Browsers that receive (str0m in its full role), and a sender of plain RTP: the load of bench/edge.py, which tells it by lines of JSON what to do.
//!
//! Each packet has the time of its sending in its payload. Browsers and sender are threads of their own; no measurement of the server's
//! processor time is affected by what this program costs, as long as a processor is left for it.
#![forbid(unsafe_code)]

mod browser;
mod feed;
mod floor;
mod sender;

use browser::Browsers;
use feed::Rate;
use sender::{Load, Sender};
use serde::Deserialize;
use serde_json::json;
use std::io::{self, BufRead as _, Write as _};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender as Channel, channel};
use std::time::Instant;

/// What the bench asks for.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Request {
    /// A browser that offers to receive so much.
    Offer {
        id: usize,
        audio: usize,
        video: usize,
    },
    Accept {
        id: usize,
        answer: String,
    },
    /// A browser that answers a server's offers, the first one and those that follow.
    Answer {
        id: usize,
        offer: String,
    },
    /// A browser that offers to send a video.
    Publish {
        id: usize,
    },
    /// Have it send for as long as this program runs.
    Feed {
        id: usize,
        #[serde(flatten)]
        rate: Rate,
    },
    /// How many are connected.
    State,
    /// Forget what was received so far.
    Reset,
    /// What was received since.
    Report,
    /// Send plain RTP, until told otherwise.
    Send(Load),
    Stop,
    /// What the kernel alone takes for such packets, to so many browsers with so many media each.
    Floor {
        browsers: usize,
        streams: usize,
        #[serde(flatten)]
        load: Load,
    },
}

/// A request of the media thread, and where its answer goes.
type Asked = (Request, Channel<serde_json::Value>);

fn main() {
    let start = Instant::now();
    let address = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let address = address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let (asks, asked): (Channel<Asked>, Receiver<Asked>) = channel();
    std::thread::spawn(move || Browsers::new(start, address).run(&asked));
    let mut sender: Option<Sender> = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line) {
            Err(error) => json!({"error": error.to_string()}),
            Ok(Request::Send(load)) => {
                drop(sender.take());
                match Sender::start(load, start) {
                    Ok(started) => {
                        let address = started.address.to_string();
                        sender = Some(started);
                        json!({ "address": address })
                    }
                    Err(error) => json!({"error": error.to_string()}),
                }
            }
            Ok(Request::Floor { browsers, streams, load }) => match floor::floor(browsers, streams, load, start) {
                Err(error) => json!({"error": error.to_string()}),
                Ok(nanoseconds) => json!({ "copy_ns": nanoseconds }),
            },
            Ok(Request::Stop) => json!({"sent": sender.take().map(Sender::stop)}),
            Ok(request) => {
                let (reply, answer) = channel();
                if asks.send((request, reply)).is_err() {
                    return;
                }
                answer.recv().unwrap_or_else(|_| json!({"error": "the browsers have ended"}))
            }
        };
        let mut out = io::stdout().lock();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
