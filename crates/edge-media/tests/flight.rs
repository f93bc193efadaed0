//! A flight is sent again, each time after twice as long, until the peer answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::Flight;
use std::time::Duration;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn a_flight_goes_again_until_it_is_answered() {
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
    assert!(flight.due().is_none() && flight.again(ms(100_000)).is_empty());
    flight.sent(ms(100_000), b"key");
    flight.sent(ms(100_000), b"finished");
    assert_eq!(
        flight.again(ms(100_250)),
        [b"key".to_vec(), b"finished".to_vec()],
        "only the flight that is not answered"
    );
}

proptest! {
    #[test]
    fn only_what_was_sent_since_the_last_answer_goes_again(events in prop::collection::vec(any::<Option<u8>>(), 0..60)) {
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
        let wanted = if answered { Vec::new() } else { wanted };
        prop_assert_eq!(flight.again(ms(10_000)), wanted.as_slice());
    }
}
