//! Dependency descriptors, payload descriptors and frame marking: vectors by hand, what Chromium sent, noise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_rtp::descriptor::{Descriptor, Indication, LayerTable, Structure, UNKNOWN, has_structure};
use shunt_rtp::payload::{FrameMark, Vp8, Vp9};
use shunt_rtp::{Header, What};

/// Chromium, AV1 L1T3, 640x360.
const AV1: &str = "c00001800214eaa860414d1410208427027f0167";
/// The same after a change of resolution: offset 5.
const AV1_MOVED: &str = "85009780a214eaa860414d1410208427013f00b3";
/// Seven templates, no chain.
const VP8: &str = "c000018002044eaaaf2860414d34538a0940409fc059c0";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn bits(fields: &[(u32, usize)]) -> Vec<u8> {
    let mut text: String = fields.iter().map(|(value, width)| format!("{value:0width$b}")).collect();
    while !text.len().is_multiple_of(8) {
        text.push('0');
    }
    (0..text.len() / 8)
        .map(|at| u8::from_str_radix(&text[8 * at..8 * at + 8], 2).unwrap())
        .collect()
}

fn structure(text: &str) -> Structure {
    Descriptor::parse(&hex(text), None).unwrap().structure.unwrap()
}

#[test]
fn the_structure_of_av1_reads_field_by_field() {
    let parsed = Descriptor::parse(&hex(AV1), None).unwrap();
    let found = parsed.structure.unwrap();
    let mandatory = parsed.mandatory;
    assert!(mandatory.start && mandatory.end && mandatory.template_id == 0 && mandatory.frame_number == 1);
    assert_eq!(parsed.active_targets, Some(0b111));
    assert_eq!(
        (found.offset, &found.resolutions[..], &found.protected_by[..]),
        (0, &[(640, 360)][..], &[0, 0, 0][..])
    );
    assert_eq!(found.targets, [(0, 0), (0, 1), (0, 2)]);
    let temporal: Vec<u8> = found.templates.iter().map(|one| one.temporal).collect();
    assert_eq!(temporal, [0, 0, 1, 2, 2]);
    let differences: Vec<&[u16]> = found.templates.iter().map(|one| &one.frame_differences[..]).collect();
    assert_eq!(differences, [&[][..], &[4], &[2], &[1], &[1]]);
    let chains: Vec<&[u8]> = found.templates.iter().map(|one| &one.chain_differences[..]).collect();
    assert_eq!(chains, [&[0][..], &[4], &[2], &[1], &[3]]);
    use Indication::{Discardable as D, NotPresent as N, Switch as S};
    let indications: Vec<&[Indication]> = found.templates.iter().map(|one| &one.indications[..]).collect();
    assert_eq!(indications, [&[S, S, S][..], &[S, S, S], &[N, D, S], &[N, N, D], &[N, N, D]]);
}

#[test]
fn structures_differ_by_codec_and_their_offsets_move() {
    let vp8 = structure(VP8);
    let temporal: Vec<u8> = vp8.templates.iter().map(|one| one.temporal).collect();
    assert_eq!(temporal, [0, 0, 0, 1, 1, 2, 2]);
    assert_eq!(vp8.templates[4].frame_differences, [4, 2]);
    assert!(vp8.protected_by.is_empty());
    let moved = structure(AV1_MOVED);
    assert_eq!((moved.offset, &moved.resolutions[..]), (5, &[(320, 180)][..]));
    assert_eq!(Descriptor::parse(&hex("c30098"), Some(&moved)).unwrap_err().what, What::Template);
    assert_eq!(Descriptor::parse(&hex("c30098"), None).unwrap_err().what, What::Structure);
}

#[test]
fn custom_fields_replace_those_of_the_template() {
    let known = structure(AV1);
    let data = bits(&[
        (1, 1),
        (0, 1),
        (3, 6),
        (700, 16),
        (0, 1),
        (1, 1),
        (1, 1),
        (1, 1),
        (1, 1),
        (0b011, 3),
        (0, 2),
        (1, 2),
        (3, 2),
        (1, 2),
        (4, 4),
        (2, 2),
        (99, 8),
        (3, 2),
        (4095, 12),
        (0, 2),
        (77, 8),
    ]);
    let parsed = Descriptor::parse(&data, Some(&known)).unwrap();
    assert_eq!(
        (parsed.mandatory.template_id, parsed.mandatory.frame_number, parsed.active_targets),
        (3, 700, Some(0b011))
    );
    assert_eq!(
        parsed.template.indications,
        [Indication::NotPresent, Indication::Discardable, Indication::Required]
    );
    assert_eq!(
        (&parsed.template.frame_differences[..], &parsed.template.chain_differences[..]),
        (&[5, 100, 4096][..], &[77][..])
    );
}

#[test]
fn chain_fields_are_not_whole_bits() {
    let mut fields = vec![
        (1, 1),
        (1, 1),
        (0, 6),
        (9, 16),
        (1, 1),
        (0, 4),
        (0, 6),
        (3, 5),
        (3, 2),
        (2, 2),
        (2, 2),
        (2, 2),
        (2, 2),
        (0, 1),
    ];
    fields.extend([
        (0b110, 3),
        (0b10, 2),
        (0b11, 2),
        (0b0, 1),
        (0b11, 2),
        (5, 4),
        (6, 4),
        (7, 4),
        (0, 1),
    ]);
    let parsed = Descriptor::parse(&bits(&fields), None).unwrap();
    assert_eq!(parsed.structure.unwrap().protected_by, [1, 2, 0, 2]);
    assert_eq!(parsed.template.chain_differences, [5, 6, 7]);
}

#[test]
fn targets_that_do_not_contain_each_other_are_not_nested() {
    assert!(structure(AV1).is_nested() && structure(VP8).is_nested());
    let simulcast = bits(&[
        (1, 1),
        (1, 1),
        (0, 6),
        (9, 16),
        (1, 1),
        (0, 4),
        (0, 6),
        (1, 5),
        (2, 2),
        (3, 2),
        (2, 2),
        (0, 2),
        (0, 2),
        (2, 2),
        (0, 1),
        (0, 1),
        (0, 2),
        (0, 1),
    ]);
    let found = Descriptor::parse(&simulcast, None).unwrap().structure.unwrap();
    assert_eq!(found.targets, [(0, 0), (1, 0)]);
    assert!(!found.is_nested());
}

fn needed(table: &LayerTable, ids: impl Iterator<Item = u8>) -> Vec<Option<u32>> {
    ids.map(|id| table.rows.get(&id).map(|row| row.needed_by)).collect()
}

#[test]
fn the_layer_table_has_rows_before_the_packet_that_needs_them() {
    let mut table = LayerTable::default();
    assert_eq!(table.layer(3), UNKNOWN);
    table.see(structure(AV1));
    let now: Vec<_> = [7, 7, 6, 4, 4, 7, 7, 6, 4, 4].into_iter().map(Some).chain([None]).collect();
    assert_eq!(needed(&table, 0..11), now, "now, and where the ids go next");
    assert!(table.see(structure(AV1)).is_empty());
    let changes = table.see(structure(AV1_MOVED));
    assert_eq!(changes.keys().copied().collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
    assert_eq!(
        needed(&table, [3, 8].into_iter()),
        [Some(4), Some(4)],
        "late packets of the old structure"
    );
    let changes = table.see(structure(VP8));
    assert_eq!(changes[&14], None);
    let all: Vec<_> = [7, 7, 7, 6, 6, 4, 4, 6, 4, 4, 6, 6, 4, 4].into_iter().map(Some).collect();
    assert_eq!(needed(&table, 0..14), all, "in force, then late, then next");
}

#[test]
fn a_receiver_moves_up_at_switch_templates() {
    let mut table = LayerTable::default();
    table.see(structure(AV1));
    let switches: Vec<u32> = (0..5).map(|id| table.layer(id).switches).collect();
    assert_eq!(switches, [0b111, 0b111, 0b100, 0, 0]);
}

#[test]
fn a_structure_cut_anywhere_is_an_error() {
    let whole = hex(AV1);
    for length in 0..whole.len() {
        assert!(Descriptor::parse(&whole[..length], None).is_err(), "{length} octets");
    }
}

#[test]
fn vp8_payload_descriptors() {
    let found = Vp8::parse(&hex("90e0a1b2c3a09d012a")).unwrap();
    assert!(found.start && !found.key && found.sync);
    assert_eq!(
        (found.picture_id, found.tl0_picture, found.temporal, found.size),
        (Some(0x21B2), Some(0xC3), Some(2), 6)
    );
    let key = Vp8::parse(&hex("1050")).unwrap();
    assert!(key.key && key.picture_id.is_none() && key.size == 1);
    assert_eq!(Vp8::parse(&hex("80800500")).unwrap().picture_id, Some(5));
    assert!(Vp8::parse(&hex("a0103f00")).unwrap().temporal.is_none(), "K without T");
    let error = Vp8::parse(&hex("8080")).unwrap_err();
    assert_eq!((error.what, error.at), (What::PayloadDescriptor, 2));
}

#[test]
fn vp9_payload_descriptors() {
    let found = Vp9::parse(&hex("acb1235407")).unwrap();
    assert!(found.start && found.end && !found.predicted && found.switching);
    assert_eq!(
        (found.picture_id, found.temporal, found.spatial, found.tl0_picture, found.size),
        (Some(0x3123), Some(2), Some(2), Some(7), 5)
    );
    let flexible = Vp9::parse(&hex("fc05420302")).unwrap();
    assert_eq!(
        (
            flexible.picture_id,
            flexible.temporal,
            flexible.spatial,
            flexible.tl0_picture,
            flexible.size
        ),
        (Some(5), Some(2), Some(1), None, 5)
    );
    assert_eq!(
        Vp9::parse(&hex("0a380280016800b4014002000401aa")).unwrap().size,
        14,
        "a scalability structure"
    );
    assert_eq!(Vp9::parse(&hex("50030303")).unwrap_err().what, What::References);
}

#[test]
fn frame_marking_in_its_two_forms() {
    let long = FrameMark::parse(&hex("ca0107")).unwrap();
    assert!(long.start && long.end && !long.independent && long.base_sync);
    assert_eq!((long.temporal, long.layer, long.tl0_picture), (2, Some(1), Some(7)));
    let short = FrameMark::parse(&hex("b0")).unwrap();
    assert!(short.start && !short.end && short.independent && short.discardable && short.layer.is_none());
    assert!(FrameMark::parse(&[]).is_err() && FrameMark::parse(&[0; 4]).is_err());
}

#[test]
fn no_packet_of_chromium_is_without_a_row_when_it_comes() {
    for name in ["chromium_av1", "chromium_vp8"] {
        let path = format!("{}/../../../tests/vectors/conference/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let (mut table, mut most, mut count) = (LayerTable::default(), 0, 0);
        for line in std::fs::read_to_string(path).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let packet = hex(line.split_whitespace().nth(1).unwrap());
            let header = Header::parse(&packet).unwrap();
            let Some(element) = header.extension.unwrap().find(12).unwrap() else {
                continue;
            };
            let parsed = Descriptor::parse(element, table.structure.as_ref()).unwrap();
            if table.structure.is_some() {
                assert!(
                    table.rows.contains_key(&parsed.mandatory.template_id),
                    "{name}: {}",
                    header.sequence
                );
            }
            if let Some(found) = parsed.structure {
                assert!(has_structure(element));
                table.see(found);
                most = most.max(table.rows.len());
            }
            count += 1;
        }
        assert!(count > 100 && (10..=21).contains(&most), "{name}: {count} packets, {most} rows");
    }
}

proptest! {
    #[test]
    fn noise_is_an_error_or_a_whole_structure(data in proptest::collection::vec(any::<u8>(), 17..64)) {
        let _ = (Vp8::parse(&data), Vp9::parse(&data), FrameMark::parse(&data), Descriptor::parse(&data, Some(&structure(AV1))));
        let head = [&[0xC0, 0, 1, 0x80][..], &data].concat();
        if let Ok(parsed) = Descriptor::parse(&head, None) {
            let found = parsed.structure.unwrap();
            prop_assert!((1..=64).contains(&found.templates.len()) && (1..=32).contains(&found.targets.len()));
            for template in &found.templates {
                prop_assert_eq!(template.indications.len(), found.targets.len());
                prop_assert_eq!(template.switches() & !template.needed_by(), 0);
            }
        }
    }
}
