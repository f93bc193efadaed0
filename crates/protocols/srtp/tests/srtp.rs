//! SRTP and SRTCP: the vectors of RFC 3711 and RFC 7714, and what may never happen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_srtp::{Master, Profile, Protector, SrtpError, Unprotector};

const PROFILES: [Profile; 3] = [Profile::Aes128CmHmacSha1_80, Profile::AeadAes128Gcm, Profile::AeadAes256Gcm];

fn masters(profile: Profile) -> (Master, Master) {
    let (key, salt) = profile.lengths();
    let exported: Vec<u8> = (0..2 * (key + salt)).map(|octet| u8::try_from(octet * 7 % 251).unwrap()).collect();
    Master::pair(profile, &exported).unwrap()
}

fn rtp(sequence: u16, ssrc: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 1]);
    packet.extend_from_slice(&ssrc.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

fn report(ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 2];
    packet.extend_from_slice(&ssrc.to_be_bytes());
    packet.extend_from_slice(b"1234");
    packet
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let octet = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(octet).collect()
}

/// What libsrtp's `test_vectors` in test/srtp_driver.c has for this master key, salt and packet.
#[test]
fn packets_are_as_other_libraries_write_them() {
    let cm = hex("e1f97a0d3e018be0d64fa32c06de4139 0ec675ad498afeebb6960b3aabe6");
    let gcm = hex("000102030405060708090a0b0c0d0e0f a0a1a2a3a4a5a6a7a8a9aaab");
    let due_cm = hex("800f1234decafbadcafebabe 4e55dc4ce79978d88ca4d215949d2402 b78d6acc99ea179b8dbb");
    let due_gcm = hex("800f1234decafbadcafebabe c5002ede04cfdd2eb91159e0880aa06e d2976826f796b201df3131a127e8a392");
    for (profile, key, due) in [(Profile::Aes128CmHmacSha1_80, cm, due_cm), (Profile::AeadAes128Gcm, gcm, due_gcm)] {
        let (octets, _) = profile.lengths();
        let (key, salt) = key.split_at(octets);
        let (master, _) = Master::pair(profile, &[key, key, salt, salt].concat()).unwrap();
        let mut packet = hex("800f1234decafbadcafebabe abababababababababababababababab");
        Protector::new(&master).unwrap().rtp(&mut packet, 0, 12, 0x1234).unwrap();
        assert_eq!(packet, due, "{profile:?}");
    }
}

#[test]
fn an_index_is_used_once() {
    for profile in PROFILES {
        let mut protector = Protector::new(&masters(profile).0).unwrap();
        for (index, due) in [
            (70_000, Ok(())),
            (69_999, Ok(())),
            (70_000, Err(SrtpError::Used)),
            (69_999, Err(SrtpError::Used)),
            (71_500, Ok(())),
            (70_100, Err(SrtpError::Used)),
            (1 << 48, Err(SrtpError::Exhausted)),
        ] {
            let packet = rtp(0, 5, b"media");
            let mut sent = packet.clone();
            assert_eq!(protector.rtp(&mut sent, 0, 12, index), due, "{profile:?} {index}");
            assert_eq!(sent == packet, due.is_err(), "what is refused stays as it is");
        }
        assert_eq!(protector.rtp(&mut rtp(0, 6, b"media"), 0, 12, 70_000), Ok(()), "another SSRC");
    }
}

#[test]
fn reports_are_read_once_and_only_with_the_key() {
    for profile in PROFILES {
        let (ours, theirs) = masters(profile);
        let (mut protector, mut unprotector) = (Protector::new(&ours).unwrap(), Unprotector::new(&ours).unwrap());
        let mut packets = Vec::new();
        for ssrc in [7, 7, 9] {
            let mut packet = report(ssrc);
            protector.rtcp(&mut packet, 0).unwrap();
            packets.push((packet, ssrc));
        }
        let mut out = Vec::new();
        for (packet, ssrc) in packets.iter().rev() {
            assert_eq!(Unprotector::new(&theirs).unwrap().rtcp(packet, &mut out), Err(SrtpError::Tag));
            assert_eq!(unprotector.rtcp(packet, &mut out), Ok(()), "{profile:?}: reordered");
            assert_eq!(out, report(*ssrc));
            assert_eq!(unprotector.rtcp(packet, &mut out), Err(SrtpError::Replayed));
        }
    }
}

#[test]
fn keys_of_another_length_are_none() {
    assert!(Master::pair(Profile::AeadAes128Gcm, &[0; 55]).is_none());
    let (client, server) = masters(Profile::AeadAes256Gcm);
    let exported = Master::export(&client, &server);
    assert_eq!(exported[..5], [0, 7, 14, 21, 28], "it reads back");
    assert_eq!(exported.len(), 88);
}

proptest! {
    #[test]
    fn a_changed_report_is_refused(at in 0usize..64, bit in 0u8..8, text in proptest::collection::vec(any::<u8>(), 0..20)) {
        for profile in PROFILES {
            let (ours, _) = masters(profile);
            let mut packet = report(3);
            packet.extend(&text);
            Protector::new(&ours).unwrap().rtcp(&mut packet, 0).unwrap();
            let at = at % packet.len();
            packet[at] ^= 1 << bit;
            let result = Unprotector::new(&ours).unwrap().rtcp(&packet, &mut Vec::new());
            prop_assert_eq!(result, Err(SrtpError::Tag));
        }
    }

    #[test]
    fn any_octets_are_read(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
        for profile in PROFILES {
            let (ours, _) = masters(profile);
            prop_assert!(Unprotector::new(&ours).unwrap().rtcp(&octets, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn no_two_reports_are_encrypted_alike(ssrcs in proptest::collection::vec(0u32..3, 2..40)) {
        let mut protector = Protector::new(&masters(Profile::AeadAes128Gcm).0).unwrap();
        let mut seen = std::collections::HashSet::new();
        for ssrc in ssrcs {
            let mut packet = report(ssrc);
            protector.rtcp(&mut packet, 0).unwrap();
            // The nonce is made of SSRC and index.
            prop_assert!(seen.insert((ssrc, packet[packet.len() - 4..].to_vec())));
        }
    }
}
