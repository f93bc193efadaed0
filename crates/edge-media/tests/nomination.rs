//! Media takes the pair that the newest nominating check came by.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::Nominated;

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

#[test]
fn only_a_request_that_nominates_counts() {
    let mut nominated = Nominated::default();
    assert!(!nominated.check(&message(1, 1, false), 'a'));
    assert!(!nominated.check(&message(0x101, 2, true), 'a'));
    assert!(!nominated.check(b"no STUN", 'a'));
    assert_eq!(nominated.pair(), None);
    assert!(nominated.check(&message(1, 3, true), 'a'));
    assert!(!nominated.check(&message(1, 4, true), 'a'), "it is the same way");
    assert_eq!(nominated.pair(), Some('a'));
}

#[test]
fn a_copy_of_a_check_from_elsewhere_takes_no_media() {
    let mut nominated = Nominated::default();
    let check = message(1, 1, true);
    assert!(nominated.check(&check, 'a'));
    assert!(!nominated.check(&check, 'b'), "a replay");
    assert!(!nominated.check(&check, 'a'), "a retransmission");
    assert_eq!(nominated.pair(), Some('a'));
}

proptest! {
    /// Rebindings, browsers that nominate several pairs, copies and retransmissions in any order: the pair is that of the last nomination that
    /// came by the pair that its transaction came by first.
    #[test]
    fn the_newest_nomination_counts(checks in prop::collection::vec((0..40_u8, 0..4_u8, any::<bool>()), 1..200)) {
        let mut nominated = Nominated::default();
        let (mut first, mut wanted) = (std::collections::HashMap::new(), None);
        for (transaction, pair, nominates) in checks {
            let changed = nominated.check(&message(1, transaction, nominates), pair);
            let before = wanted;
            if nominates && *first.entry(transaction).or_insert(pair) == pair {
                wanted = Some(pair);
            }
            prop_assert_eq!(nominated.pair(), wanted);
            prop_assert_eq!(changed, wanted != before);
        }
    }
}
