//! A check is sent again until its answer comes, by the same transaction.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::Questions;
use std::time::Duration;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A STUN message; a request and its answer differ in the first octets.
fn message(kind: u8, transaction: u8) -> Vec<u8> {
    [&[kind, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42][..], &[transaction; 12]].concat()
}

#[test]
fn a_check_goes_again_until_it_is_given_up() {
    let mut questions = Questions::default();
    assert!(questions.due().is_none() && questions.may_begin(ms(0), 'a'));
    questions.begin(ms(0), 'a', message(0, 1));
    let mut at = Vec::new();
    for now in 0..10_000 {
        let due = questions.due();
        let again = questions
            .again(ms(now))
            .map(|(pair, packet)| (pair, packet.to_vec()))
            .collect::<Vec<_>>();
        assert_eq!(!again.is_empty(), due.is_some_and(|due| due <= ms(now)));
        if !again.is_empty() {
            assert_eq!(again, [('a', message(0, 1))]);
            at.push(now);
        }
    }
    assert_eq!(at, [100, 300, 700, 1500]);
    assert!(questions.may_begin(ms(3000), 'a'));
}

#[test]
fn a_check_of_another_pair_ends_none_under_way() {
    let mut questions = Questions::default();
    for (pair, transaction) in ['a', 'b', 'c', 'd'].into_iter().zip(1..) {
        assert!(questions.may_begin(ms(0), pair));
        questions.begin(ms(0), pair, message(0, transaction));
    }
    assert!(!questions.may_begin(ms(2999), 'e'), "too many");
    assert!(!questions.may_begin(ms(2999), 'a'), "it is under way");
    for (pair, transaction) in ['a', 'b', 'c', 'd'].into_iter().zip(1..) {
        assert!(questions.is_answered_by(ms(2999), pair, &message(1, transaction)));
        assert!(!questions.is_answered_by(ms(3000), pair, &message(1, transaction)), "too late");
        assert!(!questions.is_answered_by(ms(0), pair, &message(1, 9)), "another transaction");
        assert!(!questions.is_answered_by(ms(0), 'e', &message(1, transaction)), "another pair");
        assert!(!questions.is_answered_by(ms(0), pair, b"short"));
    }
}

proptest! {
    /// Media comes all the time, each packet may begin a check, and the network may lose any of the first ones: the answer counts whatever the
    /// round trip is.
    #[test]
    fn an_answer_counts_at_any_round_trip(trip in 0..1400_u64, interval in 1..200_u64, lost in 0..4_usize) {
        let mut questions = Questions::default();
        let (mut transaction, mut sent) = (0, Vec::new());
        for now in 0..3000 {
            if now % interval == 0 && questions.may_begin(ms(now), ()) {
                transaction += 1;
                questions.begin(ms(now), (), message(0, transaction));
                sent.push((now, message(0, transaction)));
            }
            sent.extend(questions.again(ms(now)).map(|((), packet)| (now, packet.to_vec())));
            if let Some((_, check)) = sent.iter().skip(lost).find(|(at, _)| at + trip == now) {
                prop_assert!(questions.is_answered_by(ms(now), (), &message(1, check[8])));
                return Ok(());
            }
        }
        prop_assert!(false, "no check has arrived");
    }
}
