//! NG listeners over real sockets: cookies, repetitions, large and broken messages, and clients that are slow or hostile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use shunt_control::{Listener, Options, Protocol};
use shunt_rtpproxy::framing::ControlAddress;
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::served::{Served, ask, nothing, read_to_end, receive};
use support::{Folder, bencode, json, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

const PING: &str = "d7:command4:pinge";
const LIST: &str = "d7:command4:liste";
const HOLD: &str = "d7:command4:holde";
const NONE: &str = "d7:command4:nonee";
const PANIC: &str = "d7:command5:panice";

fn udp() -> Served {
    Served::udp(Protocol::Ng, Options::default())
}

fn tcp(options: Options) -> Served {
    Served::new(&"tcp:127.0.0.1:0".parse().unwrap(), Protocol::Ng, options)
}

/// Short, so that the tests are.
fn hasty() -> Options {
    Options {
        command_timeout: Duration::from_millis(300),
        ..Options::default()
    }
}

async fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// The next bytes, which are to be these.
async fn expect(stream: &mut TcpStream, text: &str) {
    let mut got = vec![0; text.len()];
    let read = timeout(Duration::from_secs(10), stream.read_exact(&mut got)).await;
    read.expect("a reply").unwrap();
    assert!(got == text.as_bytes(), "{}", got[..got.len().min(200)].escape_ascii());
}

async fn from_another_host(served: &Served) -> UdpSocket {
    let ControlAddress::Udp(address) = &served.address else { panic!() };
    let socket = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

#[tokio::test]
async fn a_command_that_is_known_gets_its_reply_whatever_the_port() {
    let served = udp();
    let client = served.client().await;
    assert_eq!(ask(&client, &format!("k {PING}")).await, format!("k {PING}"));
    assert_eq!(ask(&client, &format!("k {PING}")).await, format!("k {PING}"));
    let worker = served.client().await;
    assert_eq!(ask(&worker, &format!("k {PING}")).await, format!("k {PING}"), "another port");
    assert_eq!(ask(&worker, &format!("k {LIST}")).await, format!("k {LIST}"), "another command");
    assert_eq!(served.echo.executed(), [PING, LIST]);
    assert_eq!((served.echo.repeated.load(SeqCst), served.statistics.counts().repeated), (2, 2));
}

#[tokio::test]
async fn two_sip_servers_with_the_same_cookie_get_their_own_replies() {
    let served = udp();
    assert_eq!(ask(&served.client().await, &format!("k {PING}")).await, format!("k {PING}"));
    assert_eq!(
        ask(&from_another_host(&served).await, &format!("k {LIST}")).await,
        format!("k {LIST}")
    );
    assert_eq!(served.echo.executed(), [PING, LIST]);
}

#[tokio::test]
async fn each_port_that_repeats_a_command_in_progress_is_answered_once() {
    let served = udp();
    let (client, worker) = (served.client().await, served.client().await);
    for _ in 0..3 {
        client.send(format!("k {HOLD}").as_bytes()).await.unwrap();
        worker.send(format!("k {HOLD}").as_bytes()).await.unwrap();
    }
    until(|| served.statistics.counts().repeated == 5).await;
    served.echo.release.add_permits(3);
    for socket in [&client, &worker] {
        assert_eq!(receive(socket).await, format!("k {HOLD}"));
        nothing(socket).await;
    }
    assert_eq!(served.echo.executed(), [HOLD]);
}

#[tokio::test]
async fn a_command_without_a_reply_is_executed_when_it_is_repeated() {
    let served = udp();
    let client = served.client().await;
    for (n, command) in [NONE, NONE, PANIC, PANIC].into_iter().enumerate() {
        client.send(format!("k {command}").as_bytes()).await.unwrap();
        served.echo.begun(2 * n + 1).await;
        // The reply to another command shows that the first one has ended.
        let other = format!("l{n} {PING}");
        assert_eq!(ask(&served.client().await, &other).await, other);
    }
    nothing(&client).await;
    assert_eq!(served.echo.executed(), [NONE, PING, NONE, PING, PANIC, PING, PANIC, PING]);
}

#[tokio::test]
async fn bodies_as_long_as_a_datagram_can_be() {
    let served = udp();
    let client = served.client().await;
    for (n, size) in [12_000, 20_000, 60_000, 65_450].into_iter().enumerate() {
        for body in [bencode("offer", size), json("offer", size)] {
            let datagram = format!("k{n}{} {body}", &body[..1]);
            assert!(ask(&client, &datagram).await == datagram, "{size} bytes");
        }
    }
    assert_eq!(served.echo.executed().len(), 8);
}

#[tokio::test]
async fn a_burst_of_long_commands_is_answered_whole() {
    let served = udp();
    let client = served.client().await;
    let body = bencode("offer", 12_000);
    for burst in 0..10 {
        for n in 0..10 {
            client.send(format!("{burst}_{n} {body}").as_bytes()).await.unwrap();
        }
        let mut cookies = HashSet::new();
        for _ in 0..10 {
            let reply = receive(&client).await;
            let (cookie, got) = reply.split_once(' ').unwrap();
            assert!(got == body);
            assert!(cookies.insert(cookie.to_owned()));
        }
    }
}

#[tokio::test]
async fn what_has_no_cookie_gets_no_reply_and_what_has_no_body_an_error() {
    let served = udp();
    let client = served.client().await;
    for datagram in [PING, "ck", " ", ""] {
        client.send(datagram.as_bytes()).await.unwrap();
    }
    until(|| served.statistics.counts().malformed == 4).await;
    nothing(&client).await;
    let reply = "ck d6:result5:error12:error-reason25:Invalid data (no payload)e";
    assert_eq!(ask(&client, "ck ").await, reply);
    assert_eq!(served.statistics.counts().malformed, 5);
    assert_eq!(served.echo.executed().len(), 0);
}

#[tokio::test]
async fn what_is_no_dictionary_is_the_services_matter() {
    let served = udp();
    let client = served.client().await;
    assert_eq!(ask(&client, "ck hello\n").await, "ck rhello\n", "byte for byte");
    assert_eq!(ask(&client, "cl d7:command4:pin").await, "cl d7:command4:pin");
}

#[tokio::test]
async fn ng_is_not_spoken_over_unix_sockets() {
    for kind in ["unix", "cunix"] {
        let folder = Folder::new();
        let address = folder.address(kind);
        let error = Listener::bind(&address, Protocol::Ng, Options::default()).map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{address}: the NG protocol is spoken over udp and tcp only")
        );
    }
}

#[tokio::test]
async fn replies_on_a_connection_come_as_they_are_ready() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    for n in 0..100 {
        say(&mut stream, &format!("h{n} {HOLD}")).await;
    }
    served.echo.begun(100).await;
    say(&mut stream, &format!("k {PING}l {}", json("list", 10))).await;
    let (first, second) = (format!("k {PING}"), format!("l {}", json("list", 10)));
    let mut got = vec![0; first.len() + second.len()];
    stream.read_exact(&mut got).await.unwrap();
    let got = String::from_utf8(got).unwrap();
    assert!(got == format!("{first}{second}") || got == format!("{second}{first}"), "{got}");
    served.echo.release.add_permits(100);
    stream.shutdown().await.unwrap();
    let replies = read_to_end(&mut stream).await;
    let cookies: HashSet<&str> = replies.split(HOLD).map(str::trim).filter(|cookie| !cookie.is_empty()).collect();
    assert_eq!(cookies.len(), 100, "{replies}");
}

#[tokio::test]
async fn a_reply_that_is_missing_shifts_no_other() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    say(&mut stream, &format!("a {NONE}b {PANIC}")).await;
    served.echo.begun(2).await;
    say(&mut stream, &format!("c {PING}")).await;
    expect(&mut stream, &format!("c {PING}")).await;
}

#[tokio::test]
async fn long_and_short_messages_on_a_connection_in_bencode_and_json() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    for size in [0, 20_000, 60_000] {
        for body in [bencode("offer", size), json("offer", size)] {
            let message = format!("k {body}");
            say(&mut stream, &message).await;
            expect(&mut stream, &message).await;
        }
    }
    for message in [format!("k {}", bencode("offer", 300)), format!("k {}", json("offer", 300))] {
        for byte in message.bytes() {
            stream.write_all(&[byte]).await.unwrap();
        }
        expect(&mut stream, &message).await;
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_delimited_closes_its_connection() {
    let too_long = format!("k {}", bencode("offer", 70_000));
    for broken in ["k hello", "k d3:sdpx", &too_long] {
        let served = tcp(Options::default());
        let mut stream = served.tcp().await;
        say(&mut stream, &format!("h {HOLD}")).await;
        served.echo.begun(1).await;
        let _ = stream.write_all(broken.as_bytes()).await;
        until(|| served.statistics.counts().malformed == 1).await;
        served.echo.release.add_permits(1);
        expect(&mut stream, &format!("h {HOLD}")).await;
        // What was not read makes the end a reset.
        let end = timeout(Duration::from_secs(10), stream.read(&mut [0; 10])).await.expect("an end");
        assert!(end.is_err() || end.is_ok_and(|size| size == 0));
        assert_eq!(served.echo.executed(), [HOLD]);
    }
}

#[tokio::test]
async fn half_a_message_has_to_be_completed_in_time() {
    let served = tcp(hasty());
    let (mut idle, mut slow) = (served.tcp().await, served.tcp().await);
    say(&mut slow, "k ").await;
    // One byte more now and then does not prolong it.
    for byte in bencode("offer", 1000).bytes().take(500) {
        if slow.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let end = timeout(Duration::from_secs(10), slow.read(&mut [0; 10])).await.expect("an end");
    assert!(end.is_err() || end.is_ok_and(|size| size == 0));
    say(&mut idle, &format!("k {PING}")).await;
    expect(&mut idle, &format!("k {PING}")).await;
    assert_eq!(served.echo.executed(), [PING]);
}

#[tokio::test]
async fn a_flood_of_half_messages_stops_nobody_and_is_over_in_time() {
    let served = tcp(hasty());
    let mut client = served.tcp().await;
    say(&mut client, &format!("k {PING}")).await;
    expect(&mut client, &format!("k {PING}")).await;
    let half = format!("k {}", json("offer", 60_000));
    let mut flood = Vec::new();
    for n in 0..200 {
        let mut stream = served.tcp().await;
        let part = &half.as_bytes()[..if n % 2 == 0 { 60_000 } else { 10 }];
        // It may be over already.
        let _ = stream.write_all(part).await;
        flood.push(stream);
    }
    say(&mut client, &format!("l {LIST}")).await;
    expect(&mut client, &format!("l {LIST}")).await;
    for mut stream in flood {
        let end = timeout(Duration::from_secs(10), stream.read(&mut [0; 10])).await.expect("an end");
        assert!(end.is_err() || end.is_ok_and(|size| size == 0));
    }
    assert_eq!(served.echo.executed(), [PING, LIST]);
}

#[tokio::test]
async fn a_message_in_very_many_pieces_is_taken() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    let message = format!("k {}", json("offer", 12_000));
    for byte in message.bytes() {
        stream.write_all(&[byte]).await.unwrap();
    }
    expect(&mut stream, &message).await;
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_closed_and_stops_no_other() {
    let served = tcp(Options { in_flight: 16, ..hasty() });
    let mut deaf = served.tcp().await;
    let body = bencode("offer", 60_000);
    let flood = async {
        // More than the kernel keeps for a connection in both directions.
        for n in 0..1000 {
            if deaf.write_all(format!("k{n} {body}").as_bytes()).await.is_err() {
                return;
            }
        }
        panic!("60 MB were taken");
    };
    timeout(Duration::from_secs(30), flood).await.expect("the connection is closed");
    let mut other = served.tcp().await;
    say(&mut other, &format!("k {PING}")).await;
    expect(&mut other, &format!("k {PING}")).await;
    until(|| served.statistics.counts().in_flight == 0).await;
}

#[tokio::test]
async fn one_connection_takes_a_share_of_the_commands_at_once() {
    let served = tcp(Options {
        in_flight: 16,
        ..Options::default()
    });
    let (mut greedy, mut other) = (served.tcp().await, served.tcp().await);
    for n in 0..20 {
        say(&mut greedy, &format!("h{n} {HOLD}")).await;
    }
    served.echo.begun(2).await;
    say(&mut other, &format!("k {PING}")).await;
    expect(&mut other, &format!("k {PING}")).await;
    assert_eq!(served.echo.executed(), [HOLD, HOLD, PING]);
    served.echo.release.add_permits(20);
    served.echo.begun(21).await;
}

#[tokio::test]
async fn a_command_is_executed_to_its_end_though_the_client_has_gone() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    say(&mut stream, &format!("a {HOLD}b {HOLD}")).await;
    served.echo.begun(2).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    let mut other = served.tcp().await;
    say(&mut other, &format!("k {PING}")).await;
    expect(&mut other, &format!("k {PING}")).await;
    served.echo.release.add_permits(2);
    until(|| served.echo.running.load(SeqCst) == 0).await;
    until(|| served.statistics.counts().answered == 3).await;
}

#[tokio::test]
async fn a_stop_lets_a_reply_out() {
    let served = tcp(Options::default());
    let mut stream = served.tcp().await;
    say(&mut stream, &format!("k {HOLD}")).await;
    served.echo.begun(1).await;
    let echo = std::sync::Arc::clone(&served.echo);
    let stopping = tokio::spawn(served.stop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    echo.release.add_permits(1);
    expect(&mut stream, &format!("k {HOLD}")).await;
    stopping.await.unwrap();
}
