//! The relay client of an NG relay over real sockets: cookies, replies in any order, connections that are lost, fall silent or go wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use shunt_control::{Options, Protocol, RelayClient, RelayError, Timing};
use shunt_ng::framing;
use shunt_rtpproxy::framing::ControlAddress;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::served::Served;
use support::{Folder, bencode, json, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

const KINDS: [&str; 4] = ["udp", "udp6", "tcp", "tcp6"];
const PING: &[u8] = b"d7:command4:pinge";
const LIST: &[u8] = b"d7:command4:liste";

/// Short, so that the tests are.
const TIMING: Timing = Timing {
    timeout: Duration::from_millis(300),
    early_repeat: Duration::from_millis(100),
    retries: 3,
    refused_retry: Duration::from_millis(50),
};

/// For tests that are not about time-outs.
const PATIENT: Timing = Timing {
    timeout: Duration::from_secs(30),
    ..TIMING
};

fn client(address: &ControlAddress, timing: Timing) -> RelayClient {
    RelayClient::with_timing(address.clone(), Protocol::Ng, timing).unwrap()
}

fn served(kind: &str) -> Served {
    Served::new(&Folder::new().address(kind), Protocol::Ng, Options::default())
}

#[tokio::test]
async fn commands_and_replies_byte_for_byte() {
    for kind in KINDS {
        let relay = served(kind);
        let client = client(&relay.address, PATIENT);
        for size in [0, 20_000, 60_000] {
            // Over tcp JSON is translated, and comes back as it would be written here.
            for body in [bencode("offer", size), json("offer", size)] {
                assert!(client.forward(body.as_bytes()).await.unwrap() == body.as_bytes(), "{kind} {size}");
                assert!(client.request(body.as_bytes()).await.unwrap() == body.as_bytes(), "{kind} {size}");
            }
        }
        let lines = b"d3:sdp8:v=0\r\na=\n7:command5:offere";
        assert_eq!(client.forward(lines).await.unwrap(), lines, "{kind}");
        assert_eq!(*client.alive().borrow(), Some(true));
        assert_eq!((client.counts().sent, client.counts().answered), (13, 13), "{kind}");
        assert_eq!(client.forward(b"").await, Err(RelayError::Empty));
    }
}

#[tokio::test]
async fn a_thousand_commands_at_once() {
    for kind in KINDS {
        let relay = served(kind);
        let client = Arc::new(client(&relay.address, PATIENT));
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let client = Arc::clone(&client);
                let body = if n % 2 == 0 {
                    bencode(&format!("c{n}"), n)
                } else {
                    json(&format!("c{n}"), n)
                };
                tokio::spawn(async move { client.forward(body.as_bytes()).await.unwrap() == body.as_bytes() })
            })
            .collect();
        for task in tasks {
            assert!(task.await.unwrap(), "{kind}");
        }
    }
}

#[tokio::test]
async fn over_udp_a_command_is_repeated_with_its_cookie() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let client = client(&ControlAddress::Udp(socket.local_addr().unwrap()), TIMING);
    let relay = async {
        let mut buffer = [0; 1000];
        let (size, _) = socket.recv_from(&mut buffer).await.unwrap();
        let first = buffer[..size].to_vec();
        let (size, from) = socket.recv_from(&mut buffer).await.unwrap();
        assert_eq!(first, buffer[..size]);
        let (cookie, body) = framing::split(&first).unwrap();
        assert_eq!(body, PING);
        // rtpengine's replies have no line end, and what looks like one belongs to the body.
        socket
            .send_to(&framing::join(cookie, b"d6:result4:pong1:a2: \ne"), from)
            .await
            .unwrap();
    };
    let (reply, ()) = tokio::join!(client.forward(PING), relay);
    assert_eq!(reply.unwrap(), b"d6:result4:pong1:a2: \ne");
    assert_eq!(client.counts().repeated, 1);
}

/// A connection that is served by hand.
struct Peer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Peer {
    async fn accept(listener: &TcpListener) -> Self {
        let accepted = timeout(Duration::from_secs(10), listener.accept()).await;
        Self {
            stream: accepted.expect("a connection").unwrap().0,
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> (Vec<u8>, Vec<u8>) {
        loop {
            if let Some((message, used)) = framing::take(&self.buffer).unwrap() {
                let found = (message.cookie.to_vec(), message.body.to_vec());
                self.buffer.drain(..used);
                return found;
            }
            let read = timeout(Duration::from_secs(10), self.stream.read_buf(&mut self.buffer)).await;
            assert_ne!(read.expect("a command").unwrap(), 0, "closed");
        }
    }

    async fn reply(&mut self, cookie: &[u8], body: &[u8]) {
        self.stream.write_all(&framing::join(cookie, body)).await.unwrap();
    }
}

async fn relay() -> (TcpListener, ControlAddress) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ControlAddress::Tcp(listener.local_addr().unwrap());
    (listener, address)
}

fn ask(client: &Arc<RelayClient>, body: &[u8]) -> tokio::task::JoinHandle<Result<Vec<u8>, RelayError>> {
    let (client, body) = (Arc::clone(client), body.to_vec());
    tokio::spawn(async move { client.forward(&body).await })
}

#[tokio::test]
async fn on_a_connection_the_cookie_says_whose_a_reply_is() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, PATIENT));
    let asked: Vec<_> = (0..10)
        .map(|n| (n, ask(&client, bencode(&format!("c{n}"), 0).as_bytes())))
        .collect();
    let mut peer = Peer::accept(&listener).await;
    let mut commands = Vec::new();
    for _ in 0..10 {
        commands.push(peer.next().await);
    }
    peer.reply(b"stranger", LIST).await;
    for (cookie, body) in commands.iter().rev() {
        peer.reply(cookie, body).await;
        // A second reply is nobody's.
        peer.reply(cookie, LIST).await;
    }
    for (n, task) in asked {
        assert_eq!(task.await.unwrap().unwrap(), bencode(&format!("c{n}"), 0).as_bytes());
    }
    until(|| client.counts().late == 11).await;
}

#[tokio::test]
async fn on_a_connection_rtpengine_reads_bencode_only() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, PATIENT));
    let asked = ask(&client, b"{\"command\":\"query\", \"limit\": 7, \"flags\":[\"a\"]}");
    let mut peer = Peer::accept(&listener).await;
    let (cookie, body) = peer.next().await;
    assert_eq!(body, b"d7:command5:query5:limiti7e5:flagsl1:aee");
    peer.reply(&cookie, b"d5:callsl1:xe5:totali3e6:result2:oke").await;
    assert_eq!(asked.await.unwrap().unwrap(), b"{\"calls\":[\"x\"],\"total\":3,\"result\":\"ok\"}");
    for body in [&b"hello"[..], b"d7:command4:pin", b"{\"command\":", b"d1:ae"] {
        let error = client.forward(body).await.unwrap_err();
        assert!(matches!(error, RelayError::NotSent { .. }), "{error}");
    }
    // The line end stays behind.
    let asked = ask(&client, b"d7:command4:pinge\r\n");
    let (cookie, body) = peer.next().await;
    assert_eq!(body, PING);
    peer.reply(&cookie, PING).await;
    assert_eq!(asked.await.unwrap().unwrap(), PING);
    assert!(peer.buffer.is_empty());
    assert_eq!(*client.alive().borrow(), Some(true), "what is not sent says nothing of the relay");
}

#[tokio::test]
async fn what_no_datagram_can_carry_says_nothing_of_the_relay() {
    let relay = served("udp");
    let client = client(&relay.address, PATIENT);
    let error = client.forward(bencode("offer", 65_500).as_bytes()).await.unwrap_err();
    assert!(matches!(error, RelayError::NotSent { .. }), "{error}");
    assert_eq!(*client.alive().borrow(), None);
}

#[tokio::test]
async fn a_lost_connection_is_opened_anew_and_its_commands_are_repeated_with_their_cookies() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, PATIENT));
    let asked: Vec<_> = [PING, LIST].map(|body| (body, ask(&client, body))).into();
    let mut peer = Peer::accept(&listener).await;
    let mut first = [peer.next().await, peer.next().await];
    drop(peer);
    let mut peer = Peer::accept(&listener).await;
    let mut second = [peer.next().await, peer.next().await];
    first.sort();
    second.sort();
    assert_eq!(first, second);
    for (cookie, body) in &second {
        peer.reply(cookie, body).await;
    }
    for (body, task) in asked {
        assert_eq!(task.await.unwrap().unwrap(), body);
    }
    assert_eq!(client.counts().repeated, 2);
}

#[tokio::test]
async fn commands_on_a_connection_to_a_relay_that_has_gone_fail_soon() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, PATIENT));
    let asked = [ask(&client, PING), ask(&client, LIST)];
    let mut peer = Peer::accept(&listener).await;
    peer.next().await;
    peer.next().await;
    drop(listener);
    drop(peer);
    let begun = Instant::now();
    for task in asked {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(error, RelayError::Unreachable { .. }), "{error}");
    }
    assert!(begun.elapsed() < PATIENT.timeout / 2);
    assert_eq!(*client.alive().borrow(), Some(false));
}

#[tokio::test]
async fn one_command_that_is_never_answered_costs_no_other_its_connection() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, TIMING));
    let stuck = ask(&client, LIST);
    let mut peer = Peer::accept(&listener).await;
    let (cookie, _) = peer.next().await;
    // Others are answered all the time, so the connection is alive.
    let mut tries = 1;
    while !stuck.is_finished() {
        let (asked, again) = tokio::join!(client.forward(PING), async {
            loop {
                let (cookie, body) = peer.next().await;
                if body == PING {
                    peer.reply(&cookie, PING).await;
                    return tries;
                }
                tries += 1;
            }
        });
        assert_eq!(asked.unwrap(), PING);
        tries = again;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = stuck.await.unwrap().unwrap_err();
    assert!(matches!(error, RelayError::Timeout { tries: 2, .. }), "{error}");
    assert_eq!(tries, 2);
    peer.reply(&cookie, LIST).await;
    until(|| client.counts().late == 1).await;
    assert!(
        timeout(Duration::from_millis(50), listener.accept()).await.is_err(),
        "a second connection"
    );
}

#[tokio::test]
async fn a_connection_on_which_a_command_stops_all_later_ones_is_opened_anew() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, TIMING));
    let before = ask(&client, PING);
    let mut stopped = Peer::accept(&listener).await;
    let (cookie, _) = stopped.next().await;
    let stopping = ask(&client, LIST);
    let (first, _) = stopped.next().await;
    // An earlier command is answered meanwhile.
    stopped.reply(&cookie, PING).await;
    assert_eq!(before.await.unwrap().unwrap(), PING);
    let mut peer = Peer::accept(&listener).await;
    let (cookie, body) = peer.next().await;
    assert_eq!((&cookie, &body[..]), (&first, LIST));
    peer.reply(&cookie, LIST).await;
    assert_eq!(stopping.await.unwrap().unwrap(), LIST);
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_opened_anew() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, TIMING));
    let asked = ask(&client, PING);
    let mut silent = Peer::accept(&listener).await;
    let (first, _) = silent.next().await;
    let mut peer = Peer::accept(&listener).await;
    let (cookie, body) = peer.next().await;
    assert_eq!((&cookie, &body[..]), (&first, PING));
    peer.reply(&cookie, PING).await;
    assert_eq!(asked.await.unwrap().unwrap(), PING);
}

#[tokio::test]
async fn a_reply_that_cannot_be_delimited_ends_the_connection() {
    let (listener, address) = relay().await;
    let client = Arc::new(client(&address, PATIENT));
    let asked = ask(&client, PING);
    let mut broken = Peer::accept(&listener).await;
    let (cookie, _) = broken.next().await;
    broken.reply(&cookie, b"pong\n").await;
    let mut peer = Peer::accept(&listener).await;
    let (cookie, _) = peer.next().await;
    peer.reply(&cookie, PING).await;
    assert_eq!(asked.await.unwrap().unwrap(), PING);
}

#[tokio::test]
async fn where_nobody_listens_a_sip_servers_command_fails_soon() {
    for kind in KINDS {
        let relay = served(kind);
        let address = relay.address.clone();
        relay.stop().await;
        let client = client(&address, PATIENT);
        let begun = Instant::now();
        let error = client.forward(PING).await.unwrap_err();
        assert!(matches!(error, RelayError::Unreachable { .. }), "{kind}: {error}");
        assert!(begun.elapsed() < PATIENT.timeout / 2, "{kind}");
    }
}

#[tokio::test]
async fn ng_is_not_spoken_over_unix_sockets() {
    for kind in ["unix", "cunix"] {
        let address = Folder::new().address(kind);
        let error = RelayClient::new(address.clone(), Protocol::Ng).map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{address}: the NG protocol is spoken over udp and tcp only")
        );
    }
}
