//! The admin API in front of an agent without calls of its own, for tests of clients.
//!
//!     serve SOCKET DIRECTORY [SEGMENT-BYTES]
//!
//! Commands on standard input, one a line: `call CALL-ID` adds a call, `event CALL-ID` appends an event, `burst COUNT` appends many, `stop` ends.
//! Each is answered by `ok`, and the start by `ready`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/common/agent.rs"]
mod agent;

use agent::Agent;
use shunt_admin::{AgentFacts, AgentWhat, CallFacts, CallWhat, Event, EventLog, Facts, LogSettings, Server, ServerSettings, Text};
use std::sync::Arc;
use std::time::Duration;

fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().collect();
    let mut settings = LogSettings::new(arguments[2].clone().into());
    if let Some(bytes) = arguments.get(3) {
        settings.segment_bytes = bytes.parse().unwrap();
    }
    let log = EventLog::open(settings).unwrap();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(log.clone()));
    let agent = Arc::new(Agent::default());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    let server = Server::bind(
        ServerSettings::new(arguments[1].clone().into()),
        agent.clone(),
        log.clone(),
        Arc::new(registry),
    )
    .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(server.run(async {
        let _ = stopped.await;
    }));
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("call", call) => agent.calls.lock().unwrap().push(Text::parse(call).unwrap()),
            ("event", call) => log.append(Event::of_call(call.as_bytes(), Facts::Call(CallFacts::of(CallWhat::Resumed)))),
            ("burst", count) => {
                for _ in 0..count.parse().unwrap() {
                    log.append(Event::of_agent(Facts::Agent(AgentFacts::of(AgentWhat::Audited))));
                    // Slower than the writer: nothing is dropped.
                    if log.status().dropped == 0 {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
            }
            _ => break,
        }
        println!("ok");
    }
    log.close(Duration::from_secs(2));
    let _ = stop.send(());
    drop(entered);
    runtime.block_on(serving).unwrap().unwrap();
    println!("stopped");
}
