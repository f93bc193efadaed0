//! Captures: tells clients which calls match their filters, and passes on the SIP of these calls. The softswitch sends the packets.

use crate::core::Core;
use crate::view;
use shunt_admin::{CaptureFilter, CaptureLine, CapturedSip, Event, Facts, Failure, FailureKind};
use shunt_calls::{Book, Side, stem};
use shunt_hep::Packet;
use shunt_hep::sip::Message;
use shunt_net::Endpoint;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Bytes of SIP messages that are kept for captures, and an estimate of what each takes besides its text.
const SIP_KEPT: usize = 16 << 20;
const SIP_OVERHEAD: usize = 256;
/// SIP messages that may wait for one client, and lines on their way to it.
const SIP_WAITING: usize = 4096;
const LINES: usize = 64;
/// Calls of one capture.
const MOST_CALLS: usize = 1000;

type CallId = Box<[u8]>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running captures, and the latest SIP messages.
#[derive(Default)]
pub struct Captures {
    running: AtomicUsize,
    watches: Mutex<Vec<Arc<Watch>>>,
    sip: Mutex<KeptSip>,
}

/// The latest SIP messages, in the order of their arrival: a capture begins after the INVITE of its call.
#[derive(Default)]
struct KeptSip {
    messages: VecDeque<Arc<Copied>>,
    bytes: usize,
    /// Number of the next message.
    next: u64,
}

/// A SIP message and its place in the order of arrival.
struct Copied {
    number: u64,
    sip: CapturedSip,
}

impl KeptSip {
    fn size(sip: &CapturedSip) -> usize {
        sip.message.0.len() + sip.call.0.len() + SIP_OVERHEAD
    }

    fn push(&mut self, sip: CapturedSip) -> Arc<Copied> {
        self.bytes += Self::size(&sip);
        let copied = Arc::new(Copied { number: self.next, sip });
        self.next += 1;
        self.messages.push_back(Arc::clone(&copied));
        while self.bytes > SIP_KEPT
            && let Some(oldest) = self.messages.pop_front()
        {
            self.bytes -= Self::size(&oldest.sip);
        }
        copied
    }
}

/// What has happened since a capture's task looked.
#[derive(Default)]
struct News {
    calls: HashSet<CallId>,
    sip: VecDeque<Arc<Copied>>,
    missed: u64,
}

/// One capture.
struct Watch {
    filter: CaptureFilter,
    news: Mutex<News>,
    arrived: Notify,
}

impl Watch {
    fn new(filter: CaptureFilter) -> Self {
        Self {
            filter,
            news: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Returns whether the name of a call, as the control channel has it, matches.
    fn names(&self, call_id: &[u8]) -> bool {
        let whole = self.filter.call.as_ref().map(|call| &*call.0);
        let part = self.filter.part.as_ref().map(|part| &*part.0).filter(|part| !part.is_empty());
        whole.is_none_or(|whole| call_id == whole || stem(call_id) == Some(whole))
            && part.is_none_or(|part| call_id.windows(part.len()).any(|window| window == part))
    }

    /// Returns whether a call matches.
    fn matches(&self, book: &Book, call_id: &[u8]) -> bool {
        let mut lines = book.lines_of_call(call_id).peekable();
        self.names(call_id) && lines.peek().is_some() && (self.filter.address.is_none() || lines.any(|line| self.has_address(&line)))
    }

    fn has_address(&self, line: &shunt_calls::LineView) -> bool {
        let fits =
            |endpoint: Endpoint| self.filter.address == Some(endpoint.addr) && self.filter.port.is_none_or(|port| port == endpoint.port);
        let legs = [Side::Caller, Side::Callee].map(|side| line.leg(side));
        let of_legs = legs
            .iter()
            .flat_map(|leg| [leg.signalled, leg.learned, leg.learned_rtcp, leg.relay]);
        of_legs.flatten().any(fits)
    }

    fn add_sip(&self, message: &Arc<Copied>) {
        let mut news = lock(&self.news);
        if news.sip.len() < SIP_WAITING {
            news.sip.push_back(Arc::clone(message));
        } else {
            news.missed += 1;
        }
        self.arrived.notify_one();
    }
}

impl Captures {
    /// Notes an event: the captures of its call look at it again.
    pub fn happened(&self, event: &Event) {
        if self.running.load(Ordering::Relaxed) == 0 || matches!(event.facts, Facts::Sip(_) | Facts::Learn(_)) {
            return;
        }
        let Some(call) = &event.call else { return };
        for watch in lock(&self.watches).iter().filter(|watch| watch.names(&call.0)) {
            lock(&watch.news).calls.insert(call.0.clone());
            watch.arrived.notify_one();
        }
    }

    /// Keeps a SIP message for captures.
    pub fn keep_sip(&self, source: Endpoint, destination: Endpoint, packet: &Packet, message: &Message) {
        let seconds = Duration::from_secs(packet.seconds.into()) + Duration::from_micros(packet.microseconds.into());
        let copied = lock(&self.sip).push(CapturedSip {
            call: message.call_id().into(),
            time_us: u64::try_from(seconds.as_micros()).unwrap_or(u64::MAX),
            source,
            destination,
            protocol: packet.protocol,
            message: (&*packet.payload).into(),
        });
        if self.running.load(Ordering::Relaxed) > 0 {
            for watch in lock(&self.watches).iter() {
                watch.add_sip(&copied);
            }
        }
    }

    /// Returns the kept messages of a call, the oldest first, and the number of the next message.
    fn sip_of(&self, call_id: &[u8]) -> (Vec<Arc<Copied>>, u64) {
        let kept = lock(&self.sip);
        let of_call = kept.messages.iter().filter(|copied| is_of(&copied.sip.call.0, call_id));
        (of_call.cloned().collect(), kept.next)
    }
}

/// Returns whether a Call-ID of SIP belongs to this one of the control channel.
fn is_of(sip: &[u8], call_id: &[u8]) -> bool {
    sip == call_id || stem(call_id) == Some(sip)
}

/// Begins a capture. Returns its lines; it ends with their receiver.
///
/// # Errors
/// The filter names a call that is not running.
pub fn begin(core: &Arc<Core>, filter: CaptureFilter, client: String, socket: String) -> Result<mpsc::Receiver<CaptureLine>, Failure> {
    let watch = Arc::new(Watch::new(filter));
    // From now on calls that come are noted.
    let capture = Capture::new(Arc::clone(core), Arc::clone(&watch), client);
    let running: HashSet<CallId> = core.read(|book| {
        let names = book.lines().map(|line| line.call_id()).filter(|call_id| watch.names(call_id));
        names.map(Into::into).collect()
    });
    if let (Some(call), true) = (&watch.filter.call, running.is_empty()) {
        return Err(Failure::new(
            FailureKind::NotFound,
            format!("no call with Call-ID {}", call.as_text()),
        ));
    }
    lock(&watch.news).calls.extend(running);
    watch.arrived.notify_one();
    let (sender, receiver) = mpsc::channel(LINES);
    tokio::spawn(capture.run(sender, socket));
    Ok(receiver)
}

/// When a call was added, and the number of the first message that was not kept then.
struct Added {
    at: Duration,
    next_sip: u64,
}

/// A running capture. Its end is reported when it is dropped.
struct Capture {
    core: Arc<Core>,
    watch: Arc<Watch>,
    client: String,
    calls: HashMap<CallId, Added>,
    is_full: bool,
}

impl Capture {
    fn new(core: Arc<Core>, watch: Arc<Watch>, client: String) -> Self {
        let captures = core.events().captures();
        lock(&captures.watches).push(Arc::clone(&watch));
        captures.running.fetch_add(1, Ordering::Relaxed);
        Self {
            core,
            watch,
            client,
            calls: HashMap::new(),
            is_full: false,
        }
    }

    /// Sends lines until the client is gone.
    async fn run(mut self, lines: mpsc::Sender<CaptureLine>, socket: String) {
        if lines.send(CaptureLine::Begun { socket }).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                () = self.watch.arrived.notified() => {}
                () = lines.closed() => return,
            }
            let news = std::mem::take(&mut *lock(&self.watch.news));
            for call_id in news.calls {
                for line in self.look(&call_id) {
                    if lines.send(line).await.is_err() {
                        return;
                    }
                }
            }
            for copied in news.sip {
                let mut calls = self.calls.iter();
                let is_wanted = calls.any(|(call_id, added)| is_of(&copied.sip.call.0, call_id) && copied.number >= added.next_sip);
                if is_wanted && lines.send(CaptureLine::Sip(Box::new(copied.sip.clone()))).await.is_err() {
                    return;
                }
            }
            if news.missed > 0 && lines.send(CaptureLine::Missed { messages: news.missed }).await.is_err() {
                return;
            }
        }
    }

    /// Returns what the client must know about a call that may have changed.
    fn look(&mut self, call_id: &[u8]) -> Vec<CaptureLine> {
        let clock = self.core.clock();
        let name = |id| self.core.relays().get(id).map(|relay| relay.name.clone()).unwrap_or_default();
        let found = self.core.read(|book| {
            let matches = self.watch.matches(book, call_id);
            matches.then(|| view::call(book, &clock, clock.now(), name, call_id)).flatten()
        });
        let mut lines = Vec::new();
        match found {
            Some(call) if self.calls.contains_key(call_id) => lines.push(CaptureLine::Update(Box::new(call))),
            Some(_) if self.calls.len() >= MOST_CALLS => {
                if !std::mem::replace(&mut self.is_full, true) {
                    lines.push(CaptureLine::Limit { calls: MOST_CALLS });
                }
            }
            Some(call) => {
                let (messages, next_sip) = self.core.events().captures().sip_of(call_id);
                let at = clock.uptime();
                self.calls.insert(call_id.into(), Added { at, next_sip });
                self.core.events().captured(call_id, &self.client, None);
                lines.push(CaptureLine::Update(Box::new(call)));
                lines.extend(messages.iter().map(|copied| CaptureLine::Sip(Box::new(copied.sip.clone()))));
            }
            None => {
                if self.remove(call_id) {
                    lines.push(CaptureLine::Ended { call: call_id.into() });
                }
            }
        }
        lines
    }

    /// Removes a call and reports it. Returns whether it was there.
    fn remove(&mut self, call_id: &[u8]) -> bool {
        let Some(added) = self.calls.remove(call_id) else { return false };
        let lasted = self.core.clock().uptime().saturating_sub(added.at);
        self.core.events().captured(call_id, &self.client, Some(lasted));
        true
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let captures = self.core.events().captures();
        lock(&captures.watches).retain(|watch| !Arc::ptr_eq(watch, &self.watch));
        captures.running.fetch_sub(1, Ordering::Relaxed);
        let calls: Vec<CallId> = self.calls.keys().cloned().collect();
        for call_id in calls {
            self.remove(&call_id);
        }
    }
}
