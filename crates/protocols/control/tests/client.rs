//! The relay client over real sockets: every kind; lost and late replies; relays that are dead, slow or restarted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use nix::sys::socket::{setsockopt, sockopt};
use shunt_control::{Deadline, Listener, Options, Protocol, RelayClient, RelayError, Timing};
use shunt_rtpproxy::framing::ControlAddress;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Echo, Folder, INFO, until};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

const KINDS: [&str; 6] = ["udp", "udp6", "tcp", "tcp6", "unix", "cunix"];

/// Short, so that the tests are.
const TIMING: Timing = Timing {
    timeout: Duration::from_millis(300),
    early_repeat: Duration::from_millis(100),
    retries: 3,
    refused_retry: Duration::from_millis(50),
};

fn rtpproxy(address: ControlAddress, timing: Timing) -> RelayClient {
    RelayClient::with_timing(address, Protocol::Rtpproxy, timing).unwrap()
}

/// A relay that is this crate's own listener.
struct Relay {
    echo: Arc<Echo>,
    address: ControlAddress,
    task: JoinHandle<()>,
}

impl Relay {
    fn new(address: &ControlAddress) -> Self {
        let listener = Listener::bind(address, Protocol::Rtpproxy, Options::default()).unwrap();
        let (address, echo) = (listener.address().clone(), Arc::new(Echo::default()));
        let task = tokio::spawn(listener.serve(Arc::clone(&echo), std::future::pending()));
        Self { echo, address, task }
    }

    fn client(&self) -> RelayClient {
        rtpproxy(self.address.clone(), TIMING)
    }

    async fn kill(self) -> ControlAddress {
        self.task.abort();
        let _ = self.task.await;
        self.address
    }
}

fn text(reply: Result<Vec<u8>, RelayError>) -> String {
    String::from_utf8(reply.unwrap()).unwrap()
}

async fn fails(client: &RelayClient, command: &[u8]) -> (RelayError, Duration) {
    let begun = Instant::now();
    (client.forward(command).await.unwrap_err(), begun.elapsed())
}

#[tokio::test]
async fn commands_and_replies_over_every_kind_of_socket() {
    for kind in KINDS {
        let folder = Folder::new();
        let relay = Relay::new(&folder.address(kind));
        let client = relay.client();
        assert_eq!(*client.alive().borrow(), None);
        assert_eq!(text(client.forward(b"V").await), "rV", "{kind}");
        assert_eq!(text(client.request(b"I").await), INFO, "{kind}");
        assert_eq!(text(client.request(b"VF 1").await), "rVF 1", "{kind}");
        assert_eq!(client.forward(b" \n").await, Err(RelayError::Empty));
        assert_eq!(*client.alive().borrow(), Some(true));
        assert_eq!((client.counts().sent, client.counts().answered), (3, 3), "{kind}");
    }
}

#[tokio::test]
async fn a_thousand_commands_at_once() {
    for kind in KINDS {
        let folder = Folder::new();
        let relay = Relay::new(&folder.address(kind));
        // Whatever the machine does beside: this is about who gets which reply.
        let patient = Timing {
            timeout: Duration::from_secs(30),
            ..TIMING
        };
        let client = Arc::new(rtpproxy(relay.address.clone(), patient));
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let client = Arc::clone(&client);
                let command = if n % 50 == 0 { "I".to_owned() } else { format!("c{n}") };
                tokio::spawn(async move { (text(client.forward(command.as_bytes()).await), command) })
            })
            .collect();
        for task in tasks {
            let (reply, command) = task.await.unwrap();
            assert_eq!(
                reply,
                if command == "I" { INFO.to_owned() } else { format!("r{command}") },
                "{kind}"
            );
        }
    }
}

#[tokio::test]
async fn a_line_end_inside_a_command_does_not_make_two() {
    for kind in ["tcp", "unix", "cunix"] {
        let folder = Folder::new();
        let relay = Relay::new(&folder.address(kind));
        assert_eq!(text(relay.client().forward(b"\nU a\r\nX\n").await), "rU a  X", "{kind}");
    }
}

/// A datagram relay that does as it is told.
struct Double {
    socket: UdpSocket,
    client: RelayClient,
}

impl Double {
    async fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let client = rtpproxy(ControlAddress::Udp(socket.local_addr().unwrap()), TIMING);
        Self { socket, client }
    }

    /// The next command's cookie, text and sender.
    async fn next(&self) -> (String, String, std::net::SocketAddr) {
        let mut buffer = [0; 1000];
        let received = timeout(Duration::from_secs(10), self.socket.recv_from(&mut buffer)).await;
        let (size, from) = received.expect("a command").unwrap();
        let text = String::from_utf8(buffer[..size].to_vec()).unwrap();
        let (cookie, command) = text.split_once(' ').unwrap();
        (cookie.to_owned(), command.to_owned(), from)
    }

    async fn reply(&self, to: std::net::SocketAddr, reply: &str) {
        self.socket.send_to(reply.as_bytes(), to).await.unwrap();
    }
}

#[tokio::test]
async fn cookies_are_unique_and_no_sip_servers() {
    let (first, second) = (Double::new().await, Double::new().await);
    let mut seen = HashSet::new();
    for double in [&first, &second] {
        for _ in 0..3 {
            let (result, ()) = tokio::join!(double.client.forward(b"V"), async {
                let (cookie, _, from) = double.next().await;
                double.reply(from, &format!("{cookie} ok\n")).await;
                assert!(cookie.starts_with('s'), "{cookie}");
                assert!(seen.insert(cookie));
            });
            assert_eq!(text(result), "ok");
        }
    }
}

#[tokio::test]
async fn a_lost_command_is_repeated_with_its_cookie_and_late_replies_are_ignored() {
    let double = Double::new().await;
    let (result, ()) = tokio::join!(double.client.forward(b"V"), async {
        let (first, _, _) = double.next().await;
        let (second, _, from) = double.next().await;
        assert_eq!(first, second);
        for _ in 0..3 {
            double.reply(from, &format!("{first} ok\n")).await;
        }
    });
    assert_eq!(text(result), "ok");
    until(|| double.client.counts().late == 2).await;
    assert_eq!(double.client.counts().repeated, 1);
}

#[tokio::test]
async fn a_lost_command_is_repeated_long_before_its_time_out() {
    let mut double = Double::new().await;
    let timing = Timing {
        timeout: Duration::from_secs(30),
        ..TIMING
    };
    double.client = RelayClient::with_timing(double.client.address().clone(), Protocol::Rtpproxy, timing).unwrap();
    let begun = Instant::now();
    let (result, ()) = tokio::join!(double.client.forward(b"V"), async {
        let (first, _, _) = double.next().await;
        let (second, _, from) = double.next().await;
        assert_eq!(first, second);
        double.reply(from, &format!("{first} ok\n")).await;
    });
    assert_eq!(text(result), "ok");
    assert!(
        (TIMING.early_repeat..timing.timeout).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

/// So many commands at once, and their replies.
fn begin(client: &Arc<RelayClient>, count: usize) -> JoinSet<(String, Result<Vec<u8>, RelayError>)> {
    let mut commands = JoinSet::new();
    for n in 0..count {
        let (client, command) = (Arc::clone(client), format!("U call-{n}"));
        commands.spawn(async move {
            let reply = client.forward(command.as_bytes()).await;
            (command, reply)
        });
    }
    commands
}

#[tokio::test]
async fn a_burst_does_not_overflow_the_relays_receive_buffer() {
    const COMMANDS: usize = 300;
    let double = Double::new().await;
    // As rtpproxy has it.
    setsockopt(&double.socket, sockopt::RcvBuf, &(16 << 10)).unwrap();
    // What is lost is repeated, but not for the reason that the machine is busy.
    let timing = Timing {
        timeout: Duration::from_secs(60),
        early_repeat: Duration::from_secs(5),
        ..TIMING
    };
    let client = Arc::new(rtpproxy(double.client.address().clone(), timing));
    let mut commands = begin(&client, COMMANDS);
    for _ in 0..COMMANDS {
        let (cookie, command, from) = double.next().await;
        double.reply(from, &format!("{cookie} {command}\n")).await;
    }
    while let Some(command) = commands.join_next().await {
        let (command, reply) = command.unwrap();
        assert_eq!(text(reply), command);
    }
    assert_eq!(client.counts().repeated, 0);
}

#[tokio::test]
async fn commands_that_are_not_answered_hold_up_no_others() {
    const COMMANDS: usize = 50;
    let double = Double::new().await;
    // Longer than the test waits for a command: nothing but the early repetition makes room.
    let timing = Timing {
        timeout: Duration::from_secs(60),
        ..TIMING
    };
    let client = Arc::new(rtpproxy(double.client.address().clone(), timing));
    let commands = begin(&client, COMMANDS);
    let mut seen = HashSet::new();
    while seen.len() < COMMANDS {
        seen.insert(double.next().await.1);
    }
    assert_eq!(commands.len(), COMMANDS, "one has ended, though none was answered");
}

#[tokio::test]
async fn a_relay_that_is_silent_costs_twice_the_time_out() {
    let double = Double::new().await;
    let (error, took) = fails(&double.client, b"V").await;
    assert!(matches!(error, RelayError::Timeout { tries: 2, .. }), "{error}");
    assert!(took >= TIMING.timeout * 2, "{took:?}");
    assert_eq!(*double.client.alive().borrow(), Some(false));
    let error = double.client.request(b"V").await.unwrap_err();
    assert!(matches!(error, RelayError::Timeout { tries: 4, .. }), "{error}");
    let counts = double.client.counts();
    // Of each an early repetition, and one for each further try.
    assert_eq!((counts.sent, counts.repeated, counts.timeouts), (2, 6, 2));
}

#[tokio::test]
async fn one_call_that_is_never_answered_does_not_make_the_relay_dead() {
    let double = Double::new().await;
    let (stuck, (), answered) = tokio::join!(
        double.client.forward(b"Q stuck"),
        async {
            for _ in 0..3 {
                let (cookie, command, from) = double.next().await;
                if command == "V" {
                    double.reply(from, &format!("{cookie} ok\n")).await;
                }
            }
        },
        double.client.forward(b"V"),
    );
    assert!(stuck.is_err() && answered.is_ok());
    assert_eq!(*double.client.alive().borrow(), Some(true));
}

#[tokio::test]
async fn where_nobody_listens_a_sip_servers_command_fails_soon() {
    for kind in KINDS {
        let folder = Folder::new();
        let address = Relay::new(&folder.address(kind)).kill().await;
        // The time-out is out of reach of a busy machine.
        let timing = Timing {
            timeout: Duration::from_secs(60),
            ..TIMING
        };
        let client = rtpproxy(address, timing);
        let (error, took) = fails(&client, b"V").await;
        assert!(matches!(error, RelayError::Unreachable { .. }), "{kind}: {error}");
        assert!((TIMING.refused_retry..Duration::from_secs(30)).contains(&took), "{kind}: {took:?}");
        assert_eq!(*client.alive().borrow(), Some(false), "{kind}");
    }
}

#[tokio::test]
async fn a_relay_that_was_restarted_between_commands_costs_nothing() {
    for kind in KINDS {
        let folder = Folder::new();
        let relay = Relay::new(&folder.address(kind));
        let client = relay.client();
        assert_eq!(text(client.forward(b"a").await), "ra");
        let address = relay.kill().await;
        let relay = Relay::new(&address);
        assert_eq!(text(client.forward(b"b").await), "rb", "{kind}");
        assert_eq!(relay.echo.executed(), ["b"], "{kind}");
    }
}

#[tokio::test]
async fn a_request_waits_for_a_relay_that_is_restarted() {
    for kind in KINDS {
        let folder = Folder::new();
        let address = Relay::new(&folder.address(kind)).kill().await;
        let client = rtpproxy(address.clone(), TIMING);
        let (reply, relay) = tokio::join!(client.request(b"V"), async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            Relay::new(&address)
        });
        assert_eq!(text(reply), "rV", "{kind}");
        drop(relay);
    }
}

/// Connections are answered line by line, except that `late` is answered when its time is over, on whichever connection it came.
async fn late_relay(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "late" {
                    tokio::time::sleep(TIMING.timeout + Duration::from_millis(200)).await;
                }
                let _ = write.write_all(format!("r{line}\n").as_bytes()).await;
            }
        });
    }
}

#[tokio::test]
async fn replies_on_a_connection_never_go_to_the_wrong_command() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = rtpproxy(ControlAddress::Tcp(listener.local_addr().unwrap()), TIMING);
    let relay = tokio::spawn(late_relay(listener));
    assert!(client.forward(b"late").await.is_err());
    for n in 0..20 {
        assert_eq!(text(client.forward(format!("c{n}").as_bytes()).await), format!("rc{n}"));
    }
    relay.abort();
}

#[tokio::test]
async fn a_command_that_was_given_up_keeps_its_place_on_the_connection() {
    for kind in KINDS {
        let folder = Folder::new();
        let relay = Relay::new(&folder.address(kind));
        let client = Arc::new(relay.client());
        let given_up = tokio::spawn({
            let client = Arc::clone(&client);
            async move { client.forward(b"hold").await }
        });
        relay.echo.begun(1).await;
        given_up.abort();
        relay.echo.release.add_permits(1);
        assert_eq!(text(client.forward(b"V").await), "rV", "{kind}");
    }
}

#[tokio::test]
async fn what_a_relay_does_not_answer_in_time_is_undone_right_behind_it() {
    let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let client = rtpproxy(ControlAddress::Udp(relay.local_addr().unwrap()), TIMING);
    let due = tokio::time::Instant::now() + Duration::from_millis(50);
    let deadline = Deadline {
        send: due,
        undo: Some((due, b"D a f")),
    };
    let result = client.forward_until(b"U a 192.0.2.1 4000 f", deadline).await;
    assert!(matches!(result, Err(RelayError::Expired { .. })), "{result:?}");
    let mut got = Vec::new();
    let mut buffer = [0; 200];
    while got.last().is_none_or(|command| command != "D a f") {
        let size = timeout(Duration::from_secs(10), relay.recv(&mut buffer))
            .await
            .expect("a command")
            .unwrap();
        let datagram = String::from_utf8_lossy(&buffer[..size]).into_owned();
        got.push(datagram.split_once(' ').unwrap().1.to_owned());
    }
    assert_eq!(got.first().map(String::as_str), Some("U a 192.0.2.1 4000 f"));
}

#[tokio::test]
async fn a_command_that_finds_no_room_in_time_is_not_sent() {
    let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let patient = Timing {
        early_repeat: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..TIMING
    };
    let client = Arc::new(rtpproxy(ControlAddress::Udp(relay.local_addr().unwrap()), patient));
    let mut buffer = [0; 200];
    let mut waiting = JoinSet::new();
    for _ in 0..16 {
        let client = Arc::clone(&client);
        waiting.spawn(async move { client.forward(b"Q busy").await });
    }
    for _ in 0..16 {
        timeout(Duration::from_secs(10), relay.recv(&mut buffer))
            .await
            .expect("a command")
            .unwrap();
    }
    let due = tokio::time::Instant::now() + Duration::from_millis(50);
    let deadline = Deadline {
        send: due,
        undo: Some((due + Duration::from_secs(60), b"D a f")),
    };
    let result = client.forward_until(b"U a 192.0.2.1 4000 f", deadline).await;
    assert!(matches!(result, Err(RelayError::Expired { .. })), "{result:?}");
    assert!(relay.try_recv(&mut buffer).is_err(), "nothing was sent");
}
