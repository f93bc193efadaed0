//! Listeners over real sockets: repetitions, limits, who may command, and how they stop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use shunt_control::{Listener, Options, Patience, Protocol};
use shunt_rtpproxy::framing::ControlAddress;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::served::{Served, ask, nothing, read_to_end, receive};
use support::{Echo, Folder, until};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UdpSocket, UnixStream};
use tokio::time::timeout;

#[tokio::test]
async fn a_repetition_is_not_executed_and_gets_the_same_reply() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    assert_eq!(ask(&client, "k V").await, "k rV\n");
    assert_eq!(ask(&client, "k V").await, "k rV\n");
    assert_eq!(ask(&client, "k W").await, "k rW\n", "another command with the cookie");
    assert_eq!(ask(&served.client().await, "k V").await, "k rV\n", "another client with the cookie");
    assert_eq!(served.echo.executed(), ["V", "W", "V"]);
    assert_eq!((served.echo.repeated.load(SeqCst), served.statistics.counts().repeated), (1, 1));
}

#[tokio::test]
async fn a_repetition_of_a_command_in_progress_is_answered_once() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    for _ in 0..3 {
        client.send(b"k hold").await.unwrap();
    }
    assert_eq!(ask(&client, "l V").await, "l rV\n", "others are served meanwhile");
    served.echo.release.add_permits(3);
    assert_eq!(receive(&client).await, "k rhold\n");
    nothing(&client).await;
    assert_eq!(served.echo.executed(), ["hold", "V"]);
}

#[tokio::test]
async fn a_restarted_client_gets_no_reply_to_its_predecessors_command() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    client.send(b"k hold").await.unwrap();
    served.echo.begun(1).await;
    assert_eq!(ask(&client, "k V").await, "k rV\n");
    served.echo.release.add_permits(1);
    nothing(&client).await;
}

#[tokio::test]
async fn a_command_without_a_reply_is_executed_when_it_is_repeated() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    for command in ["none", "panic"] {
        for _ in 0..2 {
            let before = served.echo.executed().len();
            client.send(format!("k {command}").as_bytes()).await.unwrap();
            served.echo.begun(before + 1).await;
            // The reply to another client shows that the first command has ended.
            assert_eq!(ask(&served.client().await, "l V").await, "l rV\n");
        }
    }
    nothing(&client).await;
    assert_eq!(served.echo.executed(), ["none", "V", "none", "V", "panic", "V", "panic", "V"]);
    assert_eq!(served.statistics.counts().unanswered, 2);
}

#[tokio::test]
async fn commands_in_progress_are_bounded_and_the_rest_waits() {
    let served = Served::udp(
        Protocol::Rtpproxy,
        Options {
            in_flight: 4,
            ..Options::default()
        },
    );
    let client = served.client().await;
    for n in 0..20 {
        client.send(format!("k{n} hold{n}").as_bytes()).await.unwrap();
    }
    served.echo.begun(4).await;
    until(|| served.statistics.counts().stalls > 0).await;
    assert_eq!(served.statistics.counts().in_flight, 4);
    served.echo.release.add_permits(20);
    let mut replies = Vec::new();
    for _ in 0..20 {
        replies.push(receive(&client).await);
    }
    assert_eq!(served.echo.most.load(SeqCst), 4);
    assert!(replies.contains(&"k19 rhold19\n".to_owned()), "{replies:?}");
}

#[tokio::test]
async fn what_is_no_command_is_answered_and_not_executed() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    assert_eq!(ask(&client, "  \n").await, "E5\n");
    assert_eq!(ask(&client, "k").await, "k E5\n");
    let longest = "c".repeat(8192);
    assert_eq!(ask(&client, &format!("k {longest}")).await, format!("k r{longest}\n"));
    assert_eq!(ask(&client, &format!("l {longest}c")).await, "l E5\n");
    assert_eq!(ask(&client, &format!("m {}", "c".repeat(60_000))).await, "m E5\n");
    assert_eq!(served.echo.executed().len(), 1);
    assert_eq!(served.statistics.counts().malformed, 4);
}

#[tokio::test]
async fn the_reply_leaves_by_the_address_that_the_command_came_to() {
    for (bound, to) in [("udp:*:0", "127.0.0.5"), ("udp6:[::]:0", "::1")] {
        let served = Served::new(&bound.parse().unwrap(), Protocol::Rtpproxy, Options::default());
        let ControlAddress::Udp(address) = &served.address else { panic!() };
        let client = UdpSocket::bind((to.parse::<std::net::IpAddr>().unwrap(), 0)).await.unwrap();
        client.connect((to, address.port())).await.unwrap();
        assert_eq!(ask(&client, "k V").await, "k rV\n");
    }
}

#[tokio::test]
async fn commands_come_from_allowed_networks_only() {
    let options = Options {
        allow: Some(vec!["127.0.0.1".parse().unwrap()]),
        ..Options::default()
    };
    let served = Served::udp(Protocol::Rtpproxy, options.clone());
    let ControlAddress::Udp(address) = &served.address else { panic!() };
    let outsider = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    outsider.send_to(b"k V", address).await.unwrap();
    assert_eq!(ask(&served.client().await, "k who").await, "k 127.0.0.1\n");
    nothing(&outsider).await;
    assert_eq!((served.echo.executed().len(), served.statistics.counts().denied), (1, 1));

    let served = Served::new(&"tcp:127.0.0.1:0".parse().unwrap(), Protocol::Rtpproxy, options);
    let ControlAddress::Tcp(address) = served.address else { panic!() };
    let outsider = tokio::net::TcpSocket::new_v4().unwrap();
    outsider.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut outsider = outsider.connect(address).await.unwrap();
    assert_eq!(read_to_end(&mut outsider).await, "");
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, served: &Served) {
    stream.write_all(b"a\r\n\nbb\nI\nc").await.unwrap();
    stream.write_all(b"c\nnone\nlater\n").await.unwrap();
    let expected = format!("ra\nE5\nrbb\n{}\nrcc\n", support::INFO);
    assert_eq!(read_to_end(&mut stream).await, expected, "a missing reply closes the connection");
    assert_eq!(served.echo.executed(), ["a", "bb", "I", "cc", "none"]);
}

#[tokio::test]
async fn commands_of_a_connection_are_answered_in_order() {
    let folder = Folder::new();
    let served = Served::new(&folder.address("tcp"), Protocol::Rtpproxy, Options::default());
    converse(served.tcp().await, &served).await;
    let served = Served::new(&folder.address("cunix"), Protocol::Rtpproxy, Options::default());
    converse(UnixStream::connect(served.path()).await.unwrap(), &served).await;
}

#[tokio::test]
async fn a_command_without_an_end_is_answered_and_the_connection_closed() {
    let folder = Folder::new();
    let served = Served::new(&folder.address("tcp"), Protocol::Rtpproxy, Options::default());
    let mut stream = served.tcp().await;
    stream.write_all(&[b'c'; 8193]).await.unwrap();
    assert_eq!(read_to_end(&mut stream).await, "E5\n");
    assert_eq!(served.echo.executed().len(), 0);
}

#[tokio::test]
async fn one_connection_too_many_is_closed() {
    let folder = Folder::new();
    let options = Options {
        connections: 1,
        ..Options::default()
    };
    let served = Served::new(&folder.address("tcp"), Protocol::Rtpproxy, options);
    let mut first = served.tcp().await;
    first.write_all(b"V\n").await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'r');
    assert_eq!(read_to_end(&mut served.tcp().await).await, "");
    drop(first);
    until(|| served.statistics.counts().denied == 1).await;
}

#[tokio::test]
async fn unix_takes_one_command_and_closes() {
    let folder = Folder::new();
    let options = Options {
        command_timeout: Duration::from_millis(100),
        ..Options::default()
    };
    let served = Served::new(&folder.address("unix"), Protocol::Rtpproxy, options);
    let long = "c".repeat(9000);
    for (sent, reply) in [
        ("V", "rV\n"),
        ("V\r\n", "rV\n"),
        ("a\nb\n", "ra\nb\n"),
        (" \n", "E5\n"),
        (&long, "E5\n"),
        ("who", "nobody\n"),
    ] {
        let mut stream = UnixStream::connect(served.path()).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        assert_eq!(
            timeout(Duration::from_secs(10), async {
                let mut got = vec![0; reply.len()];
                stream.read_exact(&mut got).await.unwrap();
                String::from_utf8(got).unwrap()
            })
            .await
            .unwrap(),
            reply
        );
    }
    let mut idle = UnixStream::connect(served.path()).await.unwrap();
    assert_eq!(read_to_end(&mut idle).await, "", "a client that says nothing");
}

#[tokio::test]
async fn the_file_of_a_unix_socket() {
    let folder = Folder::new();
    let address = folder.address("unix");
    let served = Served::new(&address, Protocol::Rtpproxy, Options::default());
    let path = served.path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let error = Listener::bind(&address, Protocol::Rtpproxy, Options::default())
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.to_string(), "another process listens there");
    served.stop().await;
    assert!(!path.exists());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the rest of a process that was killed");
    drop(Served::new(&address, Protocol::Rtpproxy, Options::default()));
    std::fs::write(folder.0.join("file"), "").unwrap();
    let file = format!("unix:{}", folder.0.join("file").display());
    assert!(Listener::bind(&file.parse().unwrap(), Protocol::Rtpproxy, Options::default()).is_err());
}

#[tokio::test]
async fn a_stop_lets_commands_end_and_begins_no_more() {
    let served = Served::udp(Protocol::Rtpproxy, Options::default());
    let client = served.client().await;
    client.send(b"k hold").await.unwrap();
    served.echo.begun(1).await;
    let echo = Arc::clone(&served.echo);
    let stopping = tokio::spawn(served.stop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    echo.release.add_permits(1);
    assert_eq!(receive(&client).await, "k rhold\n");
    stopping.await.unwrap();
    let _ = client.send(b"l V").await;
    assert_eq!(echo.executed(), ["hold"]);
}

#[tokio::test]
async fn a_stop_waits_a_second_for_a_command_and_not_for_idle_connections() {
    let folder = Folder::new();
    let served = Served::new(&folder.address("tcp"), Protocol::Rtpproxy, Options::default());
    let mut idle = served.tcp().await;
    let mut busy = served.tcp().await;
    busy.write_all(b"hold\n").await.unwrap();
    served.echo.begun(1).await;
    served.stop().await;
    assert_eq!(
        (read_to_end(&mut idle).await, read_to_end(&mut busy).await),
        (String::new(), String::new())
    );
}

/// What is executed of commands that have waited in the socket's queue while the process was stopped.
async fn executed_after_a_stop(commands: &[&str]) -> (Vec<String>, u64) {
    let options = Options {
        patience: Some(Patience(Duration::from_millis(40))),
        ..Options::default()
    };
    let listener = Listener::bind(&"udp:127.0.0.1:0".parse().unwrap(), Protocol::Rtpproxy, options).unwrap();
    let ControlAddress::Udp(address) = *listener.address() else {
        panic!()
    };
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(address).await.unwrap();
    for (number, command) in commands.iter().enumerate() {
        client.send(format!("{number} {command}").as_bytes()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (statistics, echo) = (listener.statistics(), Arc::new(Echo::default()));
    tokio::spawn(listener.serve(Arc::clone(&echo), std::future::pending()));
    let done = || statistics.counts().expired + statistics.counts().answered == commands.len() as u64;
    until(done).await;
    (echo.executed(), statistics.counts().expired)
}

#[tokio::test]
async fn what_has_waited_longer_than_its_sender_is_not_executed_except_what_ends_a_call() {
    // The kernel begins to stamp datagrams a moment after the first socket has asked for it.
    let _first = Served::udp(Protocol::Rtpproxy, Options::default());
    let mut found = (Vec::new(), 0);
    for _ in 0..50 {
        found = executed_after_a_stop(&["new a", "V", "end a"]).await;
        if found.1 == 2 {
            break;
        }
    }
    assert_eq!(found, (vec!["end a".to_owned()], 2));
}

fn waiting(patience: Duration) -> Served {
    let options = Options {
        patience: Some(Patience(patience)),
        ..Options::default()
    };
    Served::udp(Protocol::Rtpproxy, options)
}

#[tokio::test]
async fn new_calls_wait_for_each_other_and_other_commands_do_not_wait_for_them() {
    let served = waiting(Duration::from_secs(600));
    let client = served.client().await;
    for n in 0..40 {
        client.send(format!("k{n} new hold{n}").as_bytes()).await.unwrap();
    }
    served.echo.begun(32).await;
    assert_eq!(ask(&served.client().await, "l V").await, "l rV\n");
    assert_eq!(ask(&served.client().await, "m end").await, "m rend\n");
    assert_eq!(served.echo.executed().len(), 34);
    served.echo.release.add_permits(40);
    for _ in 0..40 {
        receive(&client).await;
    }
    assert_eq!((served.echo.most.load(SeqCst), served.statistics.counts().expired), (33, 0));
}

#[tokio::test]
async fn a_new_call_without_a_place_in_time_is_not_executed() {
    let served = waiting(Duration::from_millis(500));
    let client = served.client().await;
    for n in 0..40 {
        client.send(format!("k{n} new hold{n}").as_bytes()).await.unwrap();
    }
    until(|| served.statistics.counts().expired >= 8).await;
    served.echo.release.add_permits(40);
    until(|| served.statistics.counts().answered + served.statistics.counts().expired == 40).await;
    assert!(served.echo.executed().len() <= 32);
}
