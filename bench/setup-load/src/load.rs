//! The course of a load: what is due, what comes back, and what follows from it.

use crate::call::{Call, Party, Phones as Numbers};
use crate::outcome::{Outcome, Verb};
use crate::protocol::Session;
use crate::sip::Dialog;
use crate::sockets::{Control, Phones, wait};
use crate::{Arguments, Failure, media};
use nix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PACKET: Duration = Duration::from_millis(20);
/// Packets of a party before its first sender report, and after it until the next.
const REPORT_EVERY: u32 = 8;
/// How long the load goes on after the last activity, for replies that are late.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a SIP server waits for the answer to one try (rtpproxy_timeout of opensips.cfg). It does nothing with a later answer.
const LATE: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_millis(50);
const PROGRESS: Duration = Duration::from_secs(10);
/// Packets or replies that are read before what is due has its turn.
const AT_ONCE: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Packets of both parties, by their number.
    Media {
        call: u32,
        number: u32,
    },
    HangUp {
        call: u32,
    },
}

struct Waiting {
    verb: Verb,
    call: u32,
    /// Unix time.
    sent: Duration,
}

/// A load that is on.
pub struct Load {
    arguments: Arguments,
    numbers: Numbers,
    control: Control,
    hep: Option<UdpSocket>,
    phones: [Phones; 2],
    calls: Vec<Call>,
    due: BinaryHeap<Reverse<(Instant, Due)>>,
    waiting: HashMap<u64, Waiting>,
    cookies: u64,
    outcome: Outcome,
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Load {
    /// # Errors
    /// A socket cannot be had.
    pub fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let hep = arguments.hep.map(|to| {
            let io = |error| Failure::Io {
                what: format!("HEP socket {to}"),
                error,
            };
            let socket = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
            socket.connect(to).map_err(io)?;
            Ok::<_, Failure>(socket)
        });
        Ok(Self {
            numbers: Numbers::new(arguments),
            control: Control::new(arguments.control)?,
            hep: hep.transpose()?,
            phones: [Phones::new(&arguments.caller_namespace)?, Phones::new(&arguments.callee_namespace)?],
            calls: vec![Call::default(); arguments.calls as usize],
            due: BinaryHeap::new(),
            waiting: HashMap::new(),
            cookies: 0,
            outcome: Outcome::default(),
            arguments: arguments.clone(),
        })
    }

    /// # Errors
    /// A message cannot be made.
    pub fn run(mut self) -> Result<Outcome, Failure> {
        let began = Instant::now();
        let mut begun = 0;
        let (mut last_activity, mut shown) = (began, began);
        loop {
            let now = Instant::now();
            if now - shown > PROGRESS {
                shown = now;
                eprintln!(
                    "    {begun} of {} calls begun, {} answers missing",
                    self.arguments.calls,
                    self.waiting.len()
                );
            }
            let next_call = (begun < self.arguments.calls).then(|| began + Duration::from_secs_f64(f64::from(begun) / self.arguments.rate));
            let next_due = self.due.peek().map(|Reverse((at, _))| *at);
            // New calls come last: a load that is late does not only set up calls.
            if let Some(Reverse((_, due))) = next_due.filter(|at| *at <= now).and_then(|_| self.due.pop()) {
                self.act(due, now)?;
                last_activity = now;
            } else if let Some(at) = next_call.filter(|at| *at <= now) {
                self.outcome.begun_late_us.push(micros(now - at));
                self.begin(begun)?;
                begun += 1;
                last_activity = now;
            } else if next_call.is_none() && next_due.is_none() && (self.waiting.is_empty() || now - last_activity > PATIENCE) {
                break;
            } else {
                let pause = [next_call, next_due]
                    .into_iter()
                    .flatten()
                    .min()
                    .map_or(LONGEST_WAIT, |at| at - now);
                wait(&self.control, &self.phones, pause.min(LONGEST_WAIT));
            }
            self.take_replies()?;
            self.take_packets();
        }
        // The last packets are on their way.
        std::thread::sleep(LONGEST_WAIT);
        self.take_packets();
        self.outcome.calls = begun;
        self.outcome.seconds = began.elapsed().as_secs_f64();
        self.outcome.own_cpu_s = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(0.0, |time| Duration::from(time).as_secs_f64());
        for call in &self.calls {
            for (streams, offloaded) in [&mut self.outcome.rtp, &mut self.outcome.rtcp].into_iter().zip(call.offloaded) {
                streams.streams_offloaded += offloaded.into_iter().map(u32::from).sum::<u32>();
            }
        }
        Ok(self.outcome)
    }

    fn call_id(&self, call: u32) -> String {
        format!("{}-{call}@198.18.1.2", self.arguments.tag)
    }

    fn command(&mut self, verb: Verb, call: u32) {
        let call_id = self.call_id(call);
        let (caller, callee) = (self.numbers.rtp(Party::Caller, call), self.numbers.rtp(Party::Callee, call));
        let session = Session {
            call_id: &call_id,
            call,
            caller,
            callee,
        };
        let text = self.arguments.protocol.command(verb, &session);
        self.cookies += 1;
        let cookie = self.cookies;
        let line = format!("{}_{cookie} {text}", std::process::id());
        self.outcome.commands(verb).sent += 1;
        let sent = unix_now();
        self.control.send(line.as_bytes());
        self.waiting.insert(cookie, Waiting { verb, call, sent });
    }

    fn trace(&mut self, call: u32, messages: impl FnOnce(&Dialog<'_>) -> Result<Vec<Vec<u8>>, Failure>) -> Result<(), Failure> {
        let Some(hep) = &self.hep else { return Ok(()) };
        let call_id = self.call_id(call);
        let dialog = Dialog {
            call_id: &call_id,
            number: call,
            caller: self.numbers.rtp(Party::Caller, call),
            callee: self.numbers.rtp(Party::Callee, call),
            relay: self.calls.get(call as usize).map(|call| call.relay).unwrap_or_default(),
        };
        for message in messages(&dialog)? {
            // As a SIP server sends them: what is lost is lost.
            let _ = hep.send(&message);
            self.outcome.hep_messages += 1;
        }
        Ok(())
    }

    fn begin(&mut self, call: u32) -> Result<(), Failure> {
        self.trace(call, |dialog| dialog.invite())?;
        self.command(Verb::Update, call);
        Ok(())
    }

    fn act(&mut self, due: Due, now: Instant) -> Result<(), Failure> {
        match due {
            Due::HangUp { call } => {
                self.trace(call, |dialog| dialog.bye())?;
                self.command(Verb::Delete, call);
            }
            Due::Media { call, number } => {
                self.speak(call, number);
                if number + 1 < self.arguments.packets {
                    self.due.push(Reverse((now + PACKET, Due::Media { call, number: number + 1 })));
                }
            }
        }
        Ok(())
    }

    fn speak(&mut self, call: u32, number: u32) {
        let Some(relay) = self.calls.get(call as usize).map(|call| call.relay) else {
            return;
        };
        for party in Party::BOTH {
            let Some(destination) = relay[party as usize] else { continue };
            let (source, ssrc) = (self.numbers.rtp(party, call), party.ssrc(call));
            let phones = &self.phones[party as usize];
            let sent = phones.send(&media::rtp(source, destination, ssrc, number), destination);
            self.outcome.rtp.sent += u64::from(sent);
            self.outcome.unsent += u64::from(!sent);
            if number % REPORT_EVERY == REPORT_EVERY / 2 {
                let next = |end: SocketAddrV4| SocketAddrV4::new(*end.ip(), end.port() + 1);
                let packet = media::sender_report(next(source), next(destination), ssrc, number);
                let sent = phones.send(&packet, next(destination));
                self.outcome.rtcp.sent += u64::from(sent);
                self.outcome.unsent += u64::from(!sent);
            }
        }
    }

    fn take_replies(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; 65_536];
        for _ in 0..AT_ONCE {
            let Some(reply) = self.control.receive(&mut buffer) else {
                return Ok(());
            };
            let text = String::from_utf8_lossy(reply.text).into_owned();
            let (cookie, words) = text.split_once(' ').unwrap_or((&text, ""));
            let cookie = cookie.split('_').nth(1).and_then(|cookie| cookie.parse().ok());
            let Some(Waiting { verb, call, sent }) = cookie.and_then(|cookie: u64| self.waiting.remove(&cookie)) else {
                continue;
            };
            let relay = self.arguments.protocol.relay(verb, words);
            let Some(relay) = relay else {
                self.outcome.errors += 1;
                if self.outcome.first_errors.len() < 10 {
                    self.outcome.first_errors.push(format!("{verb:?} of call {call}: {text}"));
                }
                continue;
            };
            let delay = reply.at.saturating_sub(sent);
            self.outcome.commands(verb).delays_us.push(micros(delay));
            if delay <= LATE {
                self.follow(verb, call, relay)?;
            }
        }
        Ok(())
    }

    /// A command has been answered.
    fn follow(&mut self, verb: Verb, call: u32, relay: Option<SocketAddrV4>) -> Result<(), Failure> {
        let Some(state) = self.calls.get_mut(call as usize) else {
            return Ok(());
        };
        match verb {
            Verb::Update => {
                state.relay[Party::Callee as usize] = relay;
                self.trace(call, |dialog| dialog.answer())?;
                self.command(Verb::Lookup, call);
            }
            Verb::Lookup => {
                state.relay[Party::Caller as usize] = relay;
                self.trace(call, |dialog| dialog.established())?;
                let now = Instant::now();
                self.due.push(Reverse((now, Due::Media { call, number: 0 })));
                if !self.arguments.keep {
                    let (least, most) = self.arguments.hold();
                    // Spread, so that hanging up does not fall into step with setting up.
                    let hold = least + (most - least) * (call.wrapping_mul(2_654_435_761) >> 16) / 0xffff;
                    self.due.push(Reverse((now + hold, Due::HangUp { call })));
                }
            }
            Verb::Delete => self.outcome.completed += 1,
        }
        Ok(())
    }

    fn take_packets(&mut self) {
        let mut buffer = [0; 128];
        for phones in &self.phones {
            for _ in 0..AT_ONCE {
                let Some(packet) = phones.receive(&mut buffer) else { break };
                let Some(arrived) = media::arrived(packet) else { continue };
                let (call, sender) = Party::of_ssrc(arrived.ssrc);
                let Some(call) = self.calls.get_mut(call as usize) else { continue };
                let streams = if arrived.rtcp {
                    &mut self.outcome.rtcp
                } else {
                    &mut self.outcome.rtp
                };
                streams.received += 1;
                if arrived.forwarded {
                    streams.offloaded += 1;
                    call.offloaded[usize::from(arrived.rtcp)][sender as usize] = true;
                }
            }
        }
    }
}
