//! Commands over UDP: `<cookie> <command>`, answered by `<cookie> <reply>` to the datagram's source.

use super::packet_info::PacketInfo;
use super::{Context, Counter, Listener, Sender, Service, bind};
use crate::admission::Admission;
use crate::buffers;
use crate::retransmissions::{Limits, Retransmissions, Seen, Ticket, Waits};
use nix::sys::socket::{self as sys, ControlMessageOwned, MsgFlags, SockProtocol, SockType, SockaddrStorage, sockopt};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

/// The largest UDP packet, because a command that is too long is answered too.
const LARGEST: usize = 65_536;

/// Datagrams to read before running commands are polled: no reply of a relay is passed on while many are read at once.
const AT_ONCE: usize = 16;

/// A UDP control socket.
pub struct Datagrams {
    socket: Arc<UdpSocket>,
}

/// Source of a datagram, its local address, and its time in the kernel's queue.
#[derive(Clone, Copy)]
struct Origin {
    from: SocketAddr,
    info: Option<PacketInfo>,
    waited: Duration,
}

impl Waits for Origin {
    fn peer(&self) -> SocketAddr {
        self.from
    }
}

/// State shared by a listener and its commands.
struct Exchange {
    context: Arc<Context>,
    socket: Arc<UdpSocket>,
    known: Mutex<Retransmissions<Origin>>,
    admission: Mutex<Admission>,
}

impl Datagrams {
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let fd = bind::inet(address, SockType::Datagram, SockProtocol::Udp)?;
        buffers::enlarge(&fd)?;
        sys::setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        if address.ip().is_unspecified() {
            if address.is_ipv6() {
                sys::setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                sys::setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        sys::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        let socket = Arc::new(UdpSocket::from_std(fd.into())?);
        Ok(Self { socket })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub async fn serve<S: Service>(&self, context: &Arc<Context>, service: &Arc<S>, stop: impl Future<Output = ()>) {
        let exchange = Arc::new(Exchange {
            context: Arc::clone(context),
            socket: Arc::clone(&self.socket),
            known: Mutex::new(Retransmissions::new(context.protocol, Limits::of(context.protocol))),
            admission: Mutex::new(Admission::new(context.options.patience)),
        });
        let (mut stop, mut buffer, mut number) = (pin!(stop), vec![0; LARGEST], 0_usize);
        // Commands end with the listener.
        let mut commands = JoinSet::new();
        loop {
            while commands.try_join_next().is_some() {}
            number = number.wrapping_add(1);
            if number.is_multiple_of(AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let next = async {
                let permit = exchange.permit().await?;
                Some((exchange.receive(&mut buffer).await, permit))
            };
            let received = tokio::select! {
                () = &mut stop => return Listener::finish(context).await,
                next = next => next,
            };
            let Some((result, permit)) = received else { return };
            match result {
                Ok((size, Some(origin))) => exchange.take(&mut commands, service, &buffer[..size], origin, permit),
                Ok((_, None)) => {}
                // For example the error of a reply whose receiver is gone.
                Err(error) => context.warn("receive", || format!("receive: {error}")),
            }
        }
    }
}

impl Exchange {
    fn known(&self) -> MutexGuard<'_, Retransmissions<Origin>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the place of one command. Meanwhile the kernel's queue holds the datagrams.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let places = &self.context.in_flight;
        if let Ok(permit) = Arc::clone(places).try_acquire_owned() {
            return Some(permit);
        }
        self.context.counters.add(Counter::Stalls);
        self.context.warn("full", || {
            format!("{} commands are being executed, the next ones wait", self.context.options.in_flight)
        });
        Arc::clone(places).acquire_owned().await.ok()
    }

    /// Returns the size of a datagram; without an origin there is no address to answer to.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<Origin>)> {
        self.socket
            .async_io(Interest::READABLE, || {
                let mut space = nix::cmsg_space!(nix::libc::in6_pktinfo, nix::libc::timespec);
                let mut parts = [IoSliceMut::new(buffer)];
                let got = sys::recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
                if got == Err(nix::Error::EAGAIN) {
                    self.admission().is_idle();
                }
                let got = got?;
                let (mut info, mut waited) = (None, Duration::ZERO);
                for message in got.cmsgs().into_iter().flatten() {
                    match message {
                        ControlMessageOwned::ScmTimestampns(at) => waited = since(at.into()),
                        other => info = PacketInfo::read(other).or(info),
                    }
                }
                let origin = got.address.as_ref().and_then(endpoint).map(|from| Origin { from, info, waited });
                Ok((got.bytes, origin))
            })
            .await
    }

    /// Answers a datagram at once, or starts to execute it.
    fn take<S: Service>(
        self: &Arc<Self>,
        commands: &mut JoinSet<()>,
        service: &Arc<S>,
        data: &[u8],
        origin: Origin,
        permit: OwnedSemaphorePermit,
    ) {
        if !self.context.allows(origin.from) {
            return;
        }
        let Some((cookie, body)) = self.check(data, &origin) else { return };
        let now = self.context.now();
        if !self.admission().admits(now, origin.waited, || service.kind(body)) {
            return self.expired(service.as_ref(), &origin);
        }
        let ticket = match self.known().begin(now, origin, cookie, body) {
            Seen::New(ticket) => ticket,
            Seen::InProgress => return self.repeated(service.as_ref()),
            Seen::Answered(reply) => {
                self.send(reply, &origin);
                return self.repeated(service.as_ref());
            }
        };
        let (cookie, body) = (cookie.to_vec(), body.to_vec());
        let received = Instant::now().checked_sub(origin.waited);
        let (exchange, service) = (Arc::clone(self), Arc::clone(service));
        // Tokio moves a task's future several times. A service's may be kilobytes, so it is boxed.
        commands.spawn(Box::pin(async move {
            let _permit = permit;
            let mut command = InProgress {
                exchange: &exchange,
                ticket: Some(ticket),
            };
            let sender = Sender {
                peer: Some(origin.from),
                received,
            };
            let reply = exchange.context.execute(service.as_ref(), &body, sender).await;
            let reply = reply.map(|reply| exchange.context.protocol.reply(&cookie, &reply));
            for waiting in command.end(reply.as_deref()) {
                exchange.send(reply.as_deref().unwrap_or_default(), &waiting);
            }
        }));
    }

    /// Returns cookie and command. A datagram without a command is answered here.
    fn check<'a>(&self, data: &'a [u8], origin: &Origin) -> Option<(&'a [u8], &'a [u8])> {
        let protocol = self.context.protocol;
        let Some((cookie, body)) = protocol.split(data) else {
            self.context
                .malformed("cookie", || format!("datagram without a cookie from {}", origin.from));
            if let Some(reply) = protocol.without_cookie() {
                self.send(&reply, origin);
            }
            return None;
        };
        if let Some(refusal) = self.context.refusal(body, Sender::at(origin.from)) {
            self.send(&protocol.reply(cookie, &refusal), origin);
            return None;
        }
        Some((cookie, body))
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expired(&self, service: &impl Service, origin: &Origin) {
        self.context.counters.add(Counter::Expired);
        self.context.warn("expired", || {
            format!(
                "a command from {} is not carried out: it has waited for {} ms, and its sender has stopped waiting or other commands go first",
                origin.from,
                origin.waited.as_millis()
            )
        });
        service.on_expired();
    }

    fn repeated(&self, service: &impl Service) {
        self.context.counters.add(Counter::Repeated);
        service.on_repetition();
    }

    fn send(&self, reply: &[u8], origin: &Origin) {
        let messages: Vec<_> = origin.info.iter().map(PacketInfo::message).collect();
        let parts = [IoSlice::new(reply)];
        let to = SockaddrStorage::from(origin.from);
        if let Err(error) = sys::sendmsg(self.socket.as_raw_fd(), &parts, &messages, MsgFlags::empty(), Some(&to)) {
            // The SIP server retransmits the command and gets the stored reply.
            self.context
                .warn("send", || format!("reply to {} is not sent: {error}", origin.from));
        }
    }
}

/// A command that is being executed. If it ends without a reply, for example by a panic, a retransmission executes it again.
struct InProgress<'a> {
    exchange: &'a Exchange,
    ticket: Option<Ticket>,
}

impl InProgress<'_> {
    /// The receivers of the reply.
    fn end(&mut self, reply: Option<&[u8]>) -> Vec<Origin> {
        let now = self.exchange.context.now();
        let ticket = self.ticket.take();
        ticket.map_or_else(Vec::new, |ticket| self.exchange.known().finish(now, ticket, reply))
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Returns the time since a time of the system's clock.
fn since(unix: Duration) -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(unix)
}

fn endpoint(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}
