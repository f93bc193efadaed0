//! Listeners that serve, and what clients of theirs say and hear.

use super::Echo;
use shunt_control::{Listener, Options, Protocol, Statistics};
use shunt_rtpproxy::framing::ControlAddress;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A listener that serves.
pub struct Served {
    pub echo: Arc<Echo>,
    pub address: ControlAddress,
    pub statistics: Statistics,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    pub fn new(address: &ControlAddress, protocol: Protocol, options: Options) -> Self {
        let listener = Listener::bind(address, protocol, options).unwrap();
        let (address, statistics) = (listener.address().clone(), listener.statistics());
        let echo = Arc::new(Echo::default());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(listener.serve(Arc::clone(&echo), async {
            let _ = stopped.await;
        }));
        Self {
            echo,
            address,
            statistics,
            stop: Some(stop),
            task,
        }
    }

    pub fn udp(protocol: Protocol, options: Options) -> Self {
        Self::new(&"udp:127.0.0.1:0".parse().unwrap(), protocol, options)
    }

    pub async fn stop(mut self) -> Arc<Echo> {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(Duration::from_secs(10), self.task).await.expect("it stops").unwrap();
        self.echo
    }

    pub async fn client(&self) -> UdpSocket {
        let ControlAddress::Udp(address) = &self.address else {
            panic!("not udp")
        };
        let socket = UdpSocket::bind((address.ip(), 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        socket
    }

    pub async fn tcp(&self) -> TcpStream {
        let ControlAddress::Tcp(address) = &self.address else {
            panic!("not tcp")
        };
        TcpStream::connect(address).await.unwrap()
    }

    pub fn path(&self) -> &Path {
        match &self.address {
            ControlAddress::Unix(path) | ControlAddress::Cunix(path) => path,
            other => panic!("{other} has no path"),
        }
    }
}

pub async fn receive(socket: &UdpSocket) -> String {
    let mut buffer = [0; 65_536];
    let size = timeout(Duration::from_secs(10), socket.recv(&mut buffer))
        .await
        .expect("a reply")
        .unwrap();
    String::from_utf8(buffer[..size].to_vec()).unwrap()
}

pub async fn ask(socket: &UdpSocket, datagram: &str) -> String {
    socket.send(datagram.as_bytes()).await.unwrap();
    receive(socket).await
}

pub async fn nothing(socket: &UdpSocket) {
    let mut buffer = [0; 100];
    let got = timeout(Duration::from_millis(200), socket.recv(&mut buffer)).await;
    assert!(got.is_err(), "{got:?}: {}", buffer.escape_ascii());
}

pub async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = String::new();
    timeout(Duration::from_secs(10), stream.read_to_string(&mut text))
        .await
        .expect("an end")
        .unwrap();
    text
}
