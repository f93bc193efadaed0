//! A flight is sent again, each time after twice as long, until the next one is sent or the handshake is complete.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::Flight;
use std::time::Duration;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn a_flight_goes_again_until_the_next_one() {
    let mut flight = Flight::default();
    assert_eq!(flight.due(), None);
    flight.sent(ms(0), b"hello");
    assert!(flight.again(ms(249)).is_empty());
    let mut at = Vec::new();
    for now in 0..10_000 {
        if !flight.again(ms(now)).is_empty() {
            at.push(now);
        }
    }
    assert_eq!(at, [250, 750, 1750, 3750, 7750]);
    flight.answer();
    assert_eq!(
        flight.again(ms(100_000)),
        [b"hello".to_vec()],
        "the peer's packet may be its own retransmission"
    );
    flight.sent(ms(100_000), b"key");
    flight.sent(ms(100_000), b"finished");
    assert_eq!(
        flight.again(ms(100_250)),
        [b"key".to_vec(), b"finished".to_vec()],
        "only the flight that was sent last"
    );
    flight.finish();
    assert!(flight.due().is_none() && flight.again(ms(200_000)).is_empty());
}

/// The last flight is lost, and the peer repeats its own, in any number of packets, whenever its timer says.
#[test]
fn a_peer_that_repeats_its_flight_stops_nothing() {
    for (repeated, at) in [(1, 50), (3, 50), (3, 240), (3, 260), (1, 1000)] {
        let mut flight = Flight::default();
        flight.sent(ms(0), b"finished");
        for now in 0..=1000 {
            if now == at {
                (0..repeated).for_each(|_| flight.answer());
            }
            let due = [250, 750].contains(&now);
            assert_eq!(!flight.again(ms(now)).is_empty(), due, "{repeated} packets after {at} ms: {now} ms");
        }
    }
}

proptest! {
    #[test]
    fn only_the_flight_that_was_sent_last_goes_again(events in prop::collection::vec(any::<Option<u8>>(), 0..60)) {
        let (mut flight, mut wanted) = (Flight::default(), Vec::new());
        let mut answered = false;
        for (now, event) in events.into_iter().enumerate() {
            match event {
                Some(packet) => {
                    if std::mem::take(&mut answered) {
                        wanted.clear();
                    }
                    flight.sent(ms(now as u64), &[packet]);
                    wanted.push(vec![packet]);
                }
                None => {
                    flight.answer();
                    answered = true;
                }
            }
        }
        wanted.truncate(16);
        prop_assert_eq!(flight.again(ms(10_000)), wanted.as_slice());
    }
}
