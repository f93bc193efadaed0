//! Replication trees: designs, packing to the engine's limits, and changes under which nobody gets two copies or none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::{Tables, assert_delivers, finish, layout, name, run, run_checked, source};
use proptest::prelude::*;
use shunt_conference::capacity::{Load, NoSuchLoad, Plane, capacity};
use shunt_conference::migration::{Allocator, How};
use shunt_conference::tables::{Limits, Replicate, Row, Value, Write};
use shunt_conference::trees::{Design, Layers, Layout, LayoutError, up_to};

fn engine() -> (Allocator, Tables) {
    (Allocator::new(Limits::default(), 3), Tables::default())
}

fn limited(limits: Limits) -> Allocator {
    Allocator::new(limits, 3)
}

fn design(design: Design) -> How {
    How {
        design: Some(design),
        rebuild: false,
    }
}

fn adapted(mut layout: Layout, targets: &[(&str, &str, Layers)]) -> Layout {
    layout.targets.extend(
        targets
            .iter()
            .map(|(sender, receiver, layers)| ((name(sender), name(receiver)), *layers)),
    );
    layout
}

#[test]
fn the_cheapest_design_that_does_what_is_asked() {
    let of = |names: &str, targets: &[(&str, &str, Layers)]| adapted(layout("m", names), targets).design(3);
    assert_eq!(of("ab", &[]), Ok(Design::TwoParty));
    assert_eq!(of("ab", &[("a", "b", up_to(1))]), Ok(Design::RaR));
    assert_eq!(of("abc", &[]), Ok(Design::Nra));
    assert_eq!(of("abc", &[("a", "c", up_to(1)), ("b", "c", up_to(1))]), Ok(Design::RaR));
    assert_eq!(of("abc", &[("a", "c", up_to(1))]), Ok(Design::RaSr));
    assert!(matches!(of("ab", &[("a", "b", up_to(3))]), Err(LayoutError::Target(..))));
    assert!(matches!(of("aab", &[]), Err(LayoutError::Name(_))));
    let mut listening = adapted(layout("m", "acd"), &[("a", "c", up_to(0))]);
    for one in &mut listening.participants[1..] {
        one.streams.clear();
    }
    assert_eq!(listening.design(3), Ok(Design::RaR));
}

#[test]
fn two_conferences_share_a_tree_and_listeners_get_copies() {
    let (mut allocator, mut tables) = engine();
    let (first, mut second) = (layout("m1", "abc"), layout("m2", "xyz"));
    second.participants[1].streams.clear();
    run(&mut allocator, &mut tables, &first, How::default());
    run(&mut allocator, &mut tables, &second, How::default());
    assert!(tables.0.contains_key(&Row::Tree(3)) && tables.0.keys().filter(|row| matches!(row, Row::Tree(_))).count() == 1);
    let expected = Replicate {
        mgid: 3,
        trees: 1,
        l1_xid: 2,
        rid: 3,
        l2_xid: 2,
        stream: 3,
    };
    assert_eq!(tables.0[&Row::Stream(source("m1", "b", "audio"))], Value::Stream(expected));
    assert_delivers(&tables, &[&first, &second]);
    assert_eq!(
        tables.receivers(&source("m2", "x", "video"), 2).len(),
        2,
        "y only listens, and is served"
    );
}

#[test]
fn a_port_may_have_many_receivers() {
    let (mut allocator, mut tables) = engine();
    let names: String = ('A'..='Z').chain('a'..='x').collect();
    let mut many = layout("m", &names);
    many.participants.iter_mut().for_each(|one| one.port = Some(7));
    run(&mut allocator, &mut tables, &many, How::default());
    assert_delivers(&tables, &[&many]);
}

#[test]
fn every_design_does_what_the_cheapest_does() {
    for which in [Design::Nra, Design::RaR, Design::RaSr] {
        let (mut allocator, mut tables) = engine();
        let four = layout("m", "abcd");
        run(&mut allocator, &mut tables, &four, design(which));
        assert_delivers(&tables, &[&four]);
        assert_eq!(allocator.design("m"), Some(which));
    }
    let refused = engine()
        .0
        .change(adapted(layout("m", "abc"), &[("a", "c", up_to(1))]), design(Design::Nra));
    assert_eq!(refused.unwrap_err().to_string(), "conference m: NRA cannot do what RA-SR has to");
}

#[test]
fn adapted_receivers_get_their_layers() {
    let (mut allocator, mut tables) = engine();
    let by_receiver = adapted(layout("r", "abc"), &[("a", "c", 1), ("b", "c", 1), ("a", "b", 3), ("c", "b", 3)]);
    let by_pair = adapted(layout("s", "abc"), &[("a", "c", 1), ("b", "a", 3)]);
    run(&mut allocator, &mut tables, &by_receiver, How::default());
    run(&mut allocator, &mut tables, &by_pair, How::default());
    assert_eq!(
        (allocator.design("r"), allocator.design("s")),
        (Some(Design::RaR), Some(Design::RaSr))
    );
    assert_delivers(&tables, &[&by_receiver, &by_pair]);
}

#[test]
fn packing_reaches_what_the_formula_says_and_all_comes_back() {
    for (which, names, expected) in [
        (Design::Nra, "abc", 2 * 63),
        (Design::RaR, "abc", 2 * 21),
        (Design::RaSr, "abcd", 2 * 21 / 4),
    ] {
        let mut allocator = limited(Limits {
            trees: 64,
            ..Limits::default()
        });
        let mut tables = Tables::default();
        for round in 0..2 {
            for at in 0..expected {
                run(&mut allocator, &mut tables, &layout(&format!("{round}-{at}"), names), design(which));
            }
            let before = tables.clone();
            let full = allocator.change(layout("one too many", names), design(which)).unwrap_err();
            assert_eq!(full.to_string(), "all 21 sets of trees are taken");
            assert_eq!(tables, before);
            for at in 0..expected {
                run(
                    &mut allocator,
                    &mut tables,
                    &Layout::empty(name(&format!("{round}-{at}"))),
                    How::default(),
                );
            }
            assert!(tables.0.is_empty(), "{which:?}: {} rows are left", tables.0.len());
        }
    }
}

#[test]
fn every_limit_is_named_and_nothing_is_kept() {
    let all = Limits::default();
    for (limits, words) in [
        (Limits { nodes: 3, ..all }, "all 2 L1 nodes are taken"),
        (Limits { rids: 5, ..all }, "conference m: 5 RIDs are for 2 participants"),
        (Limits { l2_xids: 3, ..all }, "all 2 L2 exclusion sets are taken"),
        (Limits { streams: 4, ..all }, "all 3 stream numbers are taken"),
    ] {
        let mut allocator = limited(limits);
        for _ in 0..3 {
            assert_eq!(allocator.change(layout("m", "abc"), How::default()).unwrap_err().to_string(), words);
        }
        run(&mut allocator, &mut Tables::default(), &layout("m", "ab"), How::default());
    }
}

#[test]
fn designs_migrate_beside_a_neighbour() {
    let all = [Design::Nra, Design::RaR, Design::RaSr];
    for (first, second, rebuild) in all
        .iter()
        .flat_map(|a| all.iter().flat_map(move |b| [(*a, *b, false), (*a, *b, true)]))
    {
        let (mut allocator, mut tables) = engine();
        let (neighbour, this) = (layout("n", "xyz"), layout("m", "abc"));
        run(&mut allocator, &mut tables, &neighbour, design(first));
        run(&mut allocator, &mut tables, &this, design(first));
        let how = How {
            design: Some(second),
            rebuild,
        };
        let done = run_checked(&mut allocator, &mut tables, &this, &this, &[&neighbour], how);
        if first == second && !rebuild {
            assert_eq!(done, [Write::Drain]);
        }
    }
}

#[test]
fn two_become_three_and_two_again() {
    let (mut allocator, mut tables) = engine();
    let (two, three) = (layout("m", "ab"), layout("m", "abc"));
    run(&mut allocator, &mut tables, &two, How::default());
    assert!(tables.0.len() == 4 && tables.0.keys().all(|row| matches!(row, Row::Relay(_))));
    run_checked(&mut allocator, &mut tables, &two, &three, &[], How::default());
    assert!(!tables.0.keys().any(|row| matches!(row, Row::Relay(_))));
    run_checked(&mut allocator, &mut tables, &three, &two, &[], How::default());
    assert_eq!(tables.0.len(), 4);
}

#[test]
fn a_join_writes_each_tree_once_and_moves_no_stream() {
    let (mut allocator, mut tables) = engine();
    let before = layout("m", "abc");
    run(&mut allocator, &mut tables, &before, How::default());
    let done = run_checked(&mut allocator, &mut tables, &before, &layout("m", "abcd"), &[], How::default());
    let trees = done.iter().filter(|write| matches!(write, Write::Modify(Row::Tree(_), _)));
    assert_eq!(trees.count(), 1);
    let streams: Vec<&Write> = done.iter().filter(|write| matches!(write.row(), Some(Row::Stream(_)))).collect();
    assert!(
        streams.len() == 2 && streams.iter().all(|write| matches!(write, Write::Add(..))),
        "{streams:?}"
    );
}

#[test]
fn a_change_that_is_refused_anywhere_before_its_first_move_is_taken_back() {
    let before = layout("m", "abc");
    let after = adapted(layout("m", "abcd"), &[("a", "b", 1)]);
    for refused_at in 0.. {
        let (mut allocator, mut tables) = engine();
        run(&mut allocator, &mut tables, &before, How::default());
        let start = tables.clone();
        let mut change = allocator.change(after.clone(), How::default()).unwrap();
        for _ in 0..refused_at {
            tables.apply(&allocator.next(&mut change).unwrap());
        }
        let failed = allocator.next(&mut change).unwrap();
        // It was in after all: an answer that got lost.
        tables.apply(&failed);
        if !allocator.abandon(&mut change) {
            assert!(refused_at > 10, "{refused_at} writes come before the first move");
            break;
        }
        finish(&mut allocator, &mut tables, &mut change);
        assert_eq!(tables, start, "refused at {refused_at}");
        run_checked(&mut allocator, &mut tables, &before, &after, &[], How::default());
        run(&mut allocator, &mut tables, &Layout::empty(name("m")), How::default());
        assert!(tables.0.is_empty());
    }
}

#[test]
fn a_participant_that_moves_to_another_port_is_served_all_the_time() {
    let (mut allocator, mut tables) = engine();
    let before = layout("m", "abc");
    run(&mut allocator, &mut tables, &before, How::default());
    let mut after = before.clone();
    after.participants[1].port = Some(3);
    run_checked(&mut allocator, &mut tables, &before, &after, &[], How::default());
    after.participants[1].port = None;
    run(&mut allocator, &mut tables, &after, How::default());
    assert_eq!(tables.receivers(&source("m", "a", "audio"), 0), [name("c")], "no route leads to b");
}

#[test]
fn the_papers_capacities() {
    let of = |design, participants, adapted| {
        let load = Load {
            participants,
            adapted,
            ..Load::default()
        };
        let found = capacity(design, &load, &Plane::default()).unwrap();
        (found.conferences, found.bound_by)
    };
    assert_eq!(of(Design::TwoParty, 2, None), (533_333, "line rate"));
    assert_eq!(of(Design::Nra, 3, None), (131_070, "trees"));
    assert_eq!(of(Design::RaR, 3, Some(0)), (43_690, "trees"));
    assert_eq!(of(Design::RaSr, 10, Some(0)), (4_369, "trees"));
    assert_eq!(of(Design::RaSr, 10, None), (728, "rewritten streams"));
    let nobody = Load {
        participants: 1,
        ..Load::default()
    };
    assert_eq!(capacity(Design::Nra, &nobody, &Plane::default()), Err(NoSuchLoad::Nobody));
}

type State = (Vec<usize>, Vec<(usize, usize, Layers)>, Vec<(usize, bool)>, bool, bool);

fn state() -> impl Strategy<Value = State> {
    let members = proptest::sample::subsequence((0..5usize).collect::<Vec<_>>(), 0..=5).prop_shuffle();
    let targets = proptest::collection::vec((0..5usize, 0..5usize, 0..8 as Layers), 0..4);
    let limits = proptest::collection::vec((0..5usize, any::<bool>()), 0..3);
    (members, targets, limits, any::<bool>(), any::<bool>())
}

fn layout_of(conference: &str, (members, targets, limits, uniform, listener): &State) -> Layout {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let names: String = members.iter().map(|at| NAMES[*at]).collect();
    let mut made = layout(conference, &names);
    for (one, at) in made.participants.iter_mut().zip(members) {
        one.port = Some(*at as u32 % 3);
    }
    if let (true, [_, .., last]) = (*listener, &mut made.participants[..]) {
        last.streams.clear();
    }
    for (sender, receiver, layers) in targets {
        let senders = if *uniform { 0..5 } else { *sender..*sender + 1 };
        for sender in senders {
            made.targets.insert((name(NAMES[sender]), name(NAMES[*receiver])), *layers);
        }
    }
    // A mixer gets layer 0 alone, and who gets a mix all but that.
    for (receiver, mixer) in limits {
        made.limits.insert(name(NAMES[*receiver]), if *mixer { 1 } else { !1 });
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_changes_of_two_conferences_lose_and_double_nothing(changes in proptest::collection::vec((any::<bool>(), state(), any::<bool>()), 1..5)) {
        let mut allocator = limited(Limits { trees: 64, ..Limits::default() });
        let mut tables = Tables::default();
        let mut current = [Layout::empty(name("m")), Layout::empty(name("n"))];
        for (which, state, rebuild) in &changes {
            let which = usize::from(*which);
            let after = layout_of(["m", "n"][which], state);
            let how = How { design: None, rebuild: *rebuild };
            run_checked(&mut allocator, &mut tables, &current[which].clone(), &after, &[&current[1 - which].clone()], how);
            current[which] = after;
        }
        for conference in ["m", "n"] {
            run(&mut allocator, &mut tables, &Layout::empty(name(conference)), How::default());
        }
        prop_assert!(tables.0.is_empty());
    }

    #[test]
    fn changes_of_two_conferences_side_by_side(states in proptest::array::uniform4(state()), order in proptest::collection::vec(any::<bool>(), 400)) {
        let mut allocator = limited(Limits { trees: 64, ..Limits::default() });
        let mut tables = Tables::default();
        let before = [layout_of("m", &states[0]), layout_of("n", &states[1])];
        let after = [layout_of("m", &states[2]), layout_of("n", &states[3])];
        for layout in &before {
            run(&mut allocator, &mut tables, layout, How::default());
        }
        let mut running: Vec<_> = after.iter().map(|layout| Some(allocator.change(layout.clone(), How::default()).unwrap())).collect();
        let mut order = order.into_iter().cycle();
        while running.iter().any(Option::is_some) {
            let which = usize::from(order.next().unwrap());
            let which = if running[which].is_some() { which } else { 1 - which };
            let Some(change) = &mut running[which] else { continue };
            let Some(write) = allocator.next(change) else {
                running[which] = None;
                continue;
            };
            tables.apply(&write);
            for (old, new) in before.iter().zip(&after) {
                let old = model::wanted(old);
                for (key, receivers) in model::wanted(new) {
                    let got = tables.receivers(&key.0, key.1);
                    let set: std::collections::BTreeSet<_> = got.iter().cloned().collect();
                    prop_assert_eq!(set.len(), got.len(), "twice to somebody");
                    if let Some(was) = old.get(&key) {
                        prop_assert!((was & &receivers).is_subset(&set));
                    }
                }
            }
        }
        assert_delivers(&tables, &[&after[0], &after[1]]);
    }
}
