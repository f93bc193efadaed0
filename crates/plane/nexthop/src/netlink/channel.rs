//! Netlink sockets: requests with answers, and subscriptions to events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::Socket;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::kernel::KernelError;

/// The kernel answers before the request returns; a longer wait means that the answer was lost.
const TIMEOUT_S: i64 = 2;
/// Size of the socket's buffer for answers and events, in bytes.
const SOCKET_BUFFER: usize = 4 << 20;
/// Size of the buffer for one datagram: the kernel fills at most 32 KiB during a dump.
const DATAGRAM: usize = 1 << 16;

fn io(call: &'static str) -> impl FnOnce(io::Error) -> KernelError {
    move |source| KernelError::Io { call, source }
}

fn open(protocol: isize) -> Result<Socket, KernelError> {
    let mut socket = Socket::new(protocol).map_err(io("socket"))?;
    socket.bind_auto().map_err(io("bind"))?;
    // A size above the system's limit needs CAP_NET_ADMIN.
    setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER))
        .map_err(|errno| io("SO_RCVBUF")(errno.into()))?;
    Ok(socket)
}

/// Reads one datagram; returns its length in bytes.
fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let length = loop {
        match socket.recv(&mut &mut *buffer, libc::MSG_TRUNC) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    // A truncated datagram counts as lost.
    if length <= buffer.len() {
        Ok(length)
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOBUFS))
    }
}

/// Returns the messages of a datagram; a malformed rest is ignored.
pub(super) fn split(mut data: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(data).ok()?;
        let length = usize::try_from(message.length()).ok()?;
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(message.into_inner().get(..length)?))
    })
}

/// A socket for requests.
pub(crate) struct Channel {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    request: Vec<u8>,
}

impl Channel {
    pub(crate) fn open(protocol: isize) -> Result<Self, KernelError> {
        let socket = open(protocol)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_S)).map_err(|errno| io("SO_RCVTIMEO")(errno.into()))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; DATAGRAM],
            request: Vec::new(),
        })
    }

    /// Appends a request to what [`Channel::send`] sends; returns its sequence number.
    fn add<M: NetlinkSerializable>(&mut self, message: M, flags: u16) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags | NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let start = self.request.len();
        let end = start + message.buffer_len();
        self.request.resize(end.next_multiple_of(4), 0);
        message.serialize(&mut self.request[start..end]);
        self.sequence
    }

    fn receive(&mut self) -> Result<usize, KernelError> {
        receive(&self.socket, &mut self.buffer).map_err(|source| {
            if source.kind() == io::ErrorKind::WouldBlock {
                KernelError::Timeout
            } else {
                KernelError::Io { call: "recv", source }
            }
        })
    }

    fn send(&mut self) -> Result<(), KernelError> {
        let sent = self.socket.send(&self.request, 0).map_err(io("send"));
        self.request.clear();
        sent.map(|_| ())
    }

    /// Sends one request and passes each message of the answer to `answer`.
    pub(crate) fn ask<M>(&mut self, message: M, flags: u16, mut answer: impl FnMut(M)) -> Result<(), KernelError>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let sequence = self.add(message, flags);
        self.send()?;
        let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut interrupted = false;
        loop {
            let length = self.receive()?;
            for message in split(&self.buffer[..length]).filter(|message| message.sequence_number() == sequence) {
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match NetlinkMessage::<M>::deserialize(message.into_inner()).map(|message| message.payload) {
                    Ok(NetlinkPayload::Error(error)) => {
                        return if error.code.is_some() {
                            Err(KernelError::Rejected { source: error.to_io() })
                        } else {
                            Ok(())
                        };
                    }
                    Ok(NetlinkPayload::Done(_)) if interrupted => {
                        return Err(KernelError::Rejected {
                            source: io::Error::from_raw_os_error(libc::EINTR),
                        });
                    }
                    Ok(NetlinkPayload::Done(_)) => return Ok(()),
                    Ok(NetlinkPayload::InnerMessage(message)) => {
                        answer(message);
                        if !dump && flags & NLM_F_ACK == 0 {
                            return Ok(());
                        }
                    }
                    Ok(_) => {}
                    // The library cannot read one message of a dump, perhaps about a new kind of interface.
                    Err(error) if dump => tracing::warn!(%error, "one message of the kernel's answer cannot be read; it is ignored"),
                    Err(error) => return Err(KernelError::Malformed(error.to_string())),
                }
            }
        }
    }

    /// Sends requests in one system call. Returns for each its answer: a message, or the reason why the kernel rejected it.
    pub(crate) fn ask_many<M>(&mut self, messages: impl Iterator<Item = M>) -> Result<Vec<Result<M, KernelError>>, KernelError>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.sequence.wrapping_add(1);
        let mut answers: Vec<Option<Result<M, KernelError>>> = messages
            .map(|message| {
                self.add(message, 0);
                None
            })
            .collect();
        if answers.is_empty() {
            return Ok(Vec::new());
        }
        self.send()?;
        let mut missing = answers.len();
        while missing > 0 {
            let length = self.receive()?;
            for message in split(&self.buffer[..length]) {
                let place = message.sequence_number().wrapping_sub(first);
                let Some(slot) = usize::try_from(place).ok().and_then(|place| answers.get_mut(place)) else {
                    continue;
                };
                let answer = match NetlinkMessage::<M>::deserialize(message.into_inner()).map(|message| message.payload) {
                    Ok(NetlinkPayload::InnerMessage(message)) => Ok(message),
                    Ok(NetlinkPayload::Error(error)) => Err(KernelError::Rejected { source: error.to_io() }),
                    Ok(_) => continue,
                    Err(error) => Err(KernelError::Malformed(error.to_string())),
                };
                missing -= usize::from(slot.replace(answer).is_none());
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// What a subscription passes to its owner.
pub(crate) enum Received<'a> {
    Messages(&'a [u8]),
    Nothing,
    /// The socket's buffer was full and events are missing; the events that were left in it have been discarded.
    Lost,
}

/// A non-blocking socket that receives events.
pub(crate) struct Subscription {
    socket: Socket,
    buffer: Vec<u8>,
}

/// Number of datagrams to discard before new ones are read again; more than the socket's buffer holds.
const MOST_THROWN_AWAY: usize = 1 << 16;

impl Subscription {
    pub(crate) fn open(protocol: isize, groups: &[u32]) -> Result<Self, KernelError> {
        let socket = open(protocol)?;
        socket.set_non_blocking(true).map_err(io("O_NONBLOCK"))?;
        for &group in groups {
            socket.add_membership(group).map_err(io("NETLINK_ADD_MEMBERSHIP"))?;
        }
        Ok(Self {
            socket,
            buffer: vec![0; DATAGRAM],
        })
    }

    pub(crate) fn receive(&mut self) -> Result<Received<'_>, KernelError> {
        match receive(&self.socket, &mut self.buffer) {
            Ok(length) => Ok(Received::Messages(&self.buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                // The rest of the buffer is older than the lost events, and older than what is read after this.
                for _ in 0..MOST_THROWN_AWAY {
                    if receive(&self.socket, &mut self.buffer).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                        break;
                    }
                }
                Ok(Received::Lost)
            }
            Err(source) => Err(KernelError::Io { call: "recv", source }),
        }
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
