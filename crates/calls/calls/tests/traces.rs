//! Recorded calls of OpenSIPS 4.1 with rtpproxy 3.2. The oracle is the SDP that the SIP server sent: it says which port a party sends to.
//!
//! Lines of tests/data: `> COOKIE COMMAND`, `< COOKIE REPLY`, `sdp PARTY PORT…` (what the SIP server told a party).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use shunt_calls::*;
use std::collections::HashMap;

fn replay(text: &str) -> (Bench, usize) {
    let mut bench = Bench::new(Settings::default());
    let mut commands: HashMap<&str, &str> = HashMap::new();
    let mut checked = 0;
    for line in text.lines() {
        if let Some((cookie, command)) = line.strip_prefix("> ").and_then(|rest| rest.split_once(' ')) {
            bench.before(command);
            commands.insert(cookie, command);
        } else if let Some((cookie, reply)) = line.strip_prefix("< ").and_then(|rest| rest.split_once(' ')) {
            bench.after(commands[cookie], reply).unwrap();
        } else if let Some((party, ports)) = line.strip_prefix("sdp ").and_then(|rest| rest.split_once(' ')) {
            checked += sends_to(&bench, party, ports);
        }
    }
    (bench, checked)
}

/// How many of the ports belong to a leg that is signalled at the party's address. Before the party's own command its legs have no address.
fn sends_to(bench: &Bench, party: &str, ports: &str) -> usize {
    let party = party.trim_matches(['[', ']']);
    let legs: Vec<_> = bench
        .book
        .lines()
        .flat_map(|line| Side::BOTH.map(|side| (line.leg(side).signalled, line.leg(side).relay)))
        .collect();
    let own = |signalled: Option<shunt_net::Endpoint>| signalled.is_some_and(|end| end.addr.to_string() == party);
    let named: Vec<u16> = legs
        .iter()
        .filter(|(signalled, _)| own(*signalled))
        .filter_map(|(_, relay)| Some(relay.as_ref()?.port))
        .collect();
    let all: Vec<u16> = legs.iter().filter_map(|(_, relay)| Some(relay.as_ref()?.port)).collect();
    let known = if named.is_empty() { all } else { named };
    let ports: Vec<u16> = ports
        .split(' ')
        .map(|port| port.parse().unwrap())
        .filter(|port| *port != 0)
        .collect();
    for port in &ports {
        assert!(known.contains(port), "{party} was told to send to {port}, the book says {known:?}");
    }
    ports.len()
}

#[test]
fn each_party_sends_to_the_port_of_its_leg() {
    for (name, text) in [
        ("basic_offer_answer", include_str!("data/basic_offer_answer.txt")),
        ("audio_video", include_str!("data/audio_video.txt")),
        ("hold_rflag", include_str!("data/hold_rflag.txt")),
        ("late_offer", include_str!("data/late_offer.txt")),
        ("cancel", include_str!("data/cancel.txt")),
        ("callee_bye", include_str!("data/callee_bye.txt")),
        ("4to6_bridge", include_str!("data/4to6_bridge.txt")),
        ("nat", include_str!("data/nat.txt")),
        ("callee_reinvite", include_str!("data/callee_reinvite.txt")),
    ] {
        let (bench, checked) = replay(text);
        assert!(checked > 0, "{name}: no SDP was compared");
        let deleted = text.lines().any(|line| line.contains(" D "));
        assert!(
            !deleted || (bench.book.call_count() == 0 && bench.book.planned_count() == 0),
            "{name}: something is left"
        );
    }
}
