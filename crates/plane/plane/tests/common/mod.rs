//! What the tests of the plane share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod double;
mod serve;
pub mod switch;

use shunt_calls::{Operation, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use shunt_plane::{Event, Plane, Settings, Target};
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::sync::mpsc;

/// On a busy machine.
pub const LONG: Duration = Duration::from_secs(60);
pub const RELAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

pub fn target(address: String) -> Target {
    Target {
        address,
        tls: None,
        device_id: 0,
        program: "relay".into(),
        client_id: 0x00ab_cdef,
        patience: Duration::from_secs(4),
    }
}

pub struct Lab {
    pub plane: Plane,
    pub events: mpsc::Receiver<Event>,
}

impl Lab {
    pub fn start(settings: Settings) -> Self {
        let (plane, events) = Plane::start(settings);
        Self { plane, events }
    }

    pub async fn event(&mut self) -> Event {
        tokio::time::timeout(LONG, self.events.recv())
            .await
            .expect("an event in time")
            .expect("the plane lives")
    }

    /// The first event of which `pick` makes something; others before it are dropped.
    pub async fn until<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        loop {
            let event = self.event().await;
            if let Some(found) = pick(event) {
                return found;
            }
        }
    }

    pub async fn up(&mut self) -> std::sync::Arc<shunt_plane::Facts> {
        self.until(|event| if let Event::Up(facts) = event { Some(facts) } else { None })
            .await
    }
}

pub fn entry(source: u16, port: u16, destination: u16) -> RelayEntry {
    let end = |last, port| Endpoint::new(Ipv4Addr::new(10, 0, 0, last), port);
    let key = FiveTuple::new(end(1, source), Endpoint::new(RELAY, port));
    RelayEntry::new(key, Endpoint::new(RELAY, port + 1000), end(2, destination)).unwrap()
}

pub fn key_of(operation: &Operation) -> FiveTuple {
    match operation {
        Operation::Insert(entry) | Operation::Modify(entry) => entry.key(),
        Operation::Delete(key) => *key,
    }
}
