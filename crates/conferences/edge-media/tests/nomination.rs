//! Media takes the first nominated pair, and each further one only once it has answered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::{Came, Nominated};
use std::time::Duration;

const USE_CANDIDATE: [u8; 4] = [0, 0x25, 0, 0];

/// A Binding request; `kind`: 0x0001 of a request, 0x0101 of a response.
fn message(kind: u16, transaction: u8, nominates: bool) -> Vec<u8> {
    let attributes: &[u8] = if nominates { &USE_CANDIDATE } else { &[] };
    let length = u16::try_from(attributes.len()).unwrap();
    let mut packet = [kind.to_be_bytes(), length.to_be_bytes()].concat();
    packet.extend([0x21, 0x12, 0xA4, 0x42]);
    packet.extend([transaction; 12]);
    packet.extend(attributes);
    packet
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Media takes pair 'a', by which the browser was heard at 0 ms.
fn at_a() -> Nominated<char> {
    let mut nominated = Nominated::default();
    assert_eq!(nominated.check(ms(0), &message(1, 0, true), 'a'), Came::First);
    nominated
}

#[test]
fn only_a_request_that_nominates_counts() {
    let mut nominated = Nominated::default();
    for packet in [message(1, 1, false), message(0x101, 2, true), b"no STUN".to_vec()] {
        assert_eq!(nominated.check(ms(0), &packet, 'a'), Came::Nothing);
        assert_eq!(nominated.media(ms(0), 'a'), Came::Nothing);
    }
    assert_eq!(nominated.pair(), None);
    assert_eq!(nominated.check(ms(0), &message(1, 3, true), 'a'), Came::First);
    assert_eq!(nominated.check(ms(0), &message(1, 4, true), 'a'), Came::Again);
    assert_eq!(nominated.check(ms(0), &message(1, 5, false), 'a'), Came::Nothing);
    assert_eq!(nominated.pair(), Some('a'));
}

#[test]
fn a_check_from_two_addresses_is_a_copy() {
    for nominates in [false, true] {
        let mut nominated = Nominated::default();
        let check = message(1, 1, nominates);
        assert!(!nominated.is_copy(&check, 'a'));
        assert!(nominated.is_copy(&check, 'b'), "a replay");
        assert!(!nominated.is_copy(&check, 'a'), "a retransmission");
        assert!(!nominated.is_copy(&message(1, 2, nominates), 'b'));
    }
}

#[test]
fn what_comes_by_another_pair_makes_the_edge_ask() {
    // What comes; how long the browser must not have been heard by the nominated pair.
    type Way = fn(&mut Nominated<char>, Duration) -> Came;
    let ways: [(Way, u64); 3] = [
        (|nominated, now| nominated.check(now, &message(1, 9, true), 'b'), 0),
        (|nominated, now| nominated.media(now, 'b'), 60),
        (|nominated, now| nominated.check(now, &message(1, 9, false), 'b'), 3000),
    ];
    for (comes, silence) in ways {
        for heard in [0, 17, 5000] {
            let mut nominated = at_a();
            assert_eq!(nominated.media(ms(heard), 'a'), Came::Nothing);
            if silence > 0 {
                assert_eq!(comes(&mut nominated, ms(heard + silence - 1)), Came::Nothing, "{silence}");
            }
            assert_eq!(comes(&mut nominated, ms(heard + silence)), Came::Elsewhere, "{silence}");
            assert_eq!(nominated.pair(), Some('a'), "it has not answered");
            nominated.take(ms(heard + silence), 'b');
            assert_eq!(nominated.pair(), Some('b'));
            assert!(!nominated.is_silent(ms(heard + silence)));
        }
    }
}

proptest! {
    /// Rebindings, browsers with several pairs, copies, and media in any order: only the first nomination and answers move media.
    #[test]
    fn media_moves_only_on_an_answer(events in prop::collection::vec((0..200_u64, 0..40_u8, 0..4_u8, 0..4_u8), 1..200)) {
        let mut nominated = Nominated::default();
        let (mut now, mut wanted, mut asked) = (0, None, None);
        for (passed, transaction, pair, kind) in events {
            now += passed;
            let check = message(1, transaction, kind == 0);
            let came = match kind {
                2 => nominated.media(ms(now), pair),
                3 => {
                    if asked == Some(pair) {
                        nominated.take(ms(now), pair);
                        wanted = asked.take();
                    }
                    Came::Nothing
                }
                _ if nominated.is_copy(&check, pair) => Came::Nothing,
                _ => nominated.check(ms(now), &check, pair),
            };
            match came {
                Came::First => {
                    prop_assert_eq!(wanted, None);
                    wanted = Some(pair);
                }
                Came::Again => prop_assert_eq!(wanted, Some(pair)),
                Came::Elsewhere => {
                    prop_assert!(wanted.is_some() && wanted != Some(pair));
                    asked = Some(pair);
                }
                Came::Nothing => {}
            }
            prop_assert_eq!(nominated.pair(), wanted);
        }
    }
}
