//! The least that can stand before a relay: commands go on as they came, and replies go back. What it costs, and adds to an answer, anything there does.
#![forbid(unsafe_code)]

use clap::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

/// The largest UDP packet.
const LARGEST: usize = 65_536;

/// Passes on the commands of one client over UDP.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where commands come to
    #[arg(long)]
    listen: SocketAddr,
    /// The relay's control socket
    #[arg(long)]
    relay: SocketAddr,
}

/// Passes on, for ever.
fn run(arguments: &Arguments) -> io::Result<()> {
    let (clients, relay) = (UdpSocket::bind(arguments.listen)?, UdpSocket::bind("127.0.0.1:0")?);
    relay.connect(arguments.relay)?;
    clients.set_nonblocking(true)?;
    relay.set_nonblocking(true)?;
    let (mut buffer, mut client) = (vec![0; LARGEST], None);
    loop {
        let mut waited = [&clients, &relay].map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        poll(&mut waited, PollTimeout::NONE)?;
        // What cannot be sent is lost, as on any way by UDP.
        while let Ok((size, from)) = clients.recv_from(&mut buffer) {
            client = Some(from);
            let _ = relay.send(&buffer[..size]);
        }
        while let (Some(client), Ok(size)) = (client, relay.recv(&mut buffer)) {
            let _ = clients.send_to(&buffer[..size], client);
        }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-forwarder: {error}");
            ExitCode::FAILURE
        }
    }
}
