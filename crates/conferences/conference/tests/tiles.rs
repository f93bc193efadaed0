//! Tiles: who has which, what mixers are told, and what becomes of it when sources join, leave and are refused, and when mixers die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_conference::jobs::Job;
use shunt_conference::membership::STREAMS;
use shunt_conference::tiles::{Area, Made, Said, Shape, Shown, Source, Tiles};
use shunt_latch::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Tiles, and SSRCs for them.
struct Lab {
    tiles: Tiles,
    next: u32,
}

impl Lab {
    fn new(places: u8, columns: Option<u8>) -> Self {
        Self {
            tiles: Tiles::new(Shape { places, columns }),
            next: 1_000_000,
        }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Tiles, &mut dyn FnMut() -> u32) -> R) -> R {
        let next = &mut self.next;
        let mut fresh = || {
            *next += 1;
            *next
        };
        act(&mut self.tiles, &mut fresh)
    }

    fn assign(&mut self, list: &[(&str, u32)], now: Time) -> bool {
        let sources: Vec<Source> = list.iter().map(|(name, ssrc)| ((*name).into(), Ok(*ssrc))).collect();
        self.with(|tiles, fresh| tiles.assign(&sources, fresh, now))
    }

    /// Somebody's tile, as the mixer of a job numbers it, has so many pictures, of which so many could not be tiled. Who loses a tile.
    fn says(&mut self, job: Job, place: u8, contributor: u32, shown: Shown, seconds: u64) -> Vec<(String, String)> {
        let ssrcs = self.tiles.ssrcs(job);
        let said = || {
            vec![Said {
                place,
                contributor,
                shown: shown.clone(),
            }]
        };
        let mut lost = Vec::new();
        for ssrc in ssrcs {
            lost.extend(self.with(|tiles, fresh| tiles.take(job, ssrc, said(), fresh, at(seconds))));
        }
        lost.into_iter().map(|(name, reason)| (name.to_string(), reason)).collect()
    }

    /// Participant, stream and place of each tile.
    fn layout(&self) -> Vec<(String, usize, u8)> {
        layout(&self.tiles)
    }

    fn is(&self, wanted: &[(&str, usize, u8)]) {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(name, stream, place)| ((*name).to_owned(), *stream, *place))
            .collect();
        assert_eq!(self.layout(), wanted);
    }
}

fn layout(tiles: &Tiles) -> Vec<(String, usize, u8)> {
    let streams = tiles.streams().iter().enumerate();
    let tile = |(at, place, name): (usize, &u8, String)| (name, at, *place);
    streams
        .flat_map(|(at, stream)| {
            let tiles = stream.tiles.iter();
            tiles.map(move |(place, tile)| (at, place, tile.participant.to_string()))
        })
        .map(tile)
        .collect()
}

fn at(seconds: u64) -> Time {
    Time::from(Duration::from_secs(seconds))
}

/// So many pictures, of which so many could not be tiled.
fn refused(pictures: u64, refused: u64, last: bool) -> Shown {
    Shown {
        pictures,
        refused,
        refusal: last.then(|| "no".to_owned()),
        ..Shown::default()
    }
}

fn one(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(name, reason)| ((*name).to_owned(), (*reason).to_owned()))
        .collect()
}

#[test]
fn who_has_a_tile_keeps_its_place_and_who_comes_gets_the_first_that_is_free() {
    let mut lab = Lab::new(2, None);
    let all = [("a", 1), ("b", 2), ("c", 3)];
    assert!(lab.assign(&all, at(0)) && !lab.assign(&all, at(1)));
    lab.is(&[("a", 0, 0), ("b", 0, 1), ("c", 1, 0)]);
    let ssrcs = lab.tiles.ssrcs(Job::Tiles);
    assert_ne!(ssrcs[0], ssrcs[1]);
    assert!(lab.assign(&[("b", 2), ("c", 3)], at(2)));
    lab.is(&[("b", 0, 1), ("c", 1, 0)]);
    // An encoder that has begun anew has another SSRC.
    assert!(lab.assign(&[("b", 7), ("c", 3), ("d", 4)], at(3)));
    lab.is(&[("d", 0, 0), ("b", 0, 1), ("c", 1, 0)]);
    assert_eq!(lab.tiles.ssrcs(Job::Tiles), ssrcs);
    assert!(lab.assign(&[("b", 7)], at(4)));
    assert_eq!(lab.tiles.ssrcs(Job::Tiles), ssrcs[..1], "a stream without tiles is over");
    assert!(lab.assign(&[], at(5)));
    assert_eq!(lab.tiles.ssrcs(Job::Tiles), ssrcs[..1], "the first one stays");
    assert_eq!(lab.tiles.jobs(), BTreeSet::new());
}

#[test]
fn who_comes_when_all_tiles_are_taken_is_named() {
    let mut lab = Lab::new(1, None);
    lab.assign(&[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)], at(0));
    assert_eq!(lab.layout().len(), STREAMS);
    assert_eq!(lab.tiles.untiled().get("e").map(String::as_str), Some("all 4 tiles are taken"));
    assert!(lab.assign(&[("b", 2), ("c", 3), ("d", 4), ("e", 5)], at(1)));
    assert_eq!(lab.layout()[0], ("e".to_owned(), 0, 0));
    assert!(lab.tiles.untiled().is_empty());
}

#[test]
fn a_tile_whose_source_is_refused_for_long_is_taken_back_and_tried_again_later() {
    // In one level, and in a column of two.
    for (columns, job) in [(None, Job::Tiles), (Some(2), Job::Column(0))] {
        let (mut lab, list) = (Lab::new(4, columns), [("a", 1), ("b", 2)]);
        lab.assign(&list, at(0));
        assert_eq!(lab.says(job, 0, 1, refused(1, 1, true), 1), []);
        assert_eq!(lab.says(job, 0, 1, refused(2, 2, true), 9), [], "too few pictures");
        assert_eq!(lab.says(job, 0, 1, refused(3, 2, false), 10), [], "one that can be tiled");
        assert_eq!(lab.says(job, 0, 1, refused(12, 11, true), 11), []);
        assert_eq!(lab.says(job, 0, 1, refused(20, 19, true), 13), [], "too soon");
        assert_eq!(lab.says(job, 0, 1, refused(30, 29, true), 14), one(&[("a", "no")]));
        assert_eq!(lab.says(job, 0, 9, refused(90, 90, true), 99), [], "another one's tile");
        assert!(lab.assign(&list, at(15)));
        lab.is(&[("b", 0, 1)]);
        assert_eq!(lab.tiles.untiled().get("a").map(String::as_str), Some("no"));
        assert!(!lab.assign(&list, at(73)));
        assert!(lab.assign(&list, at(74)), "its encoder may have other settings");
        lab.says(job, 0, 1, refused(1, 1, true), 80);
        lab.says(job, 0, 1, refused(9, 9, true), 90);
        assert!(lab.assign(&list, at(91)));
        assert!(lab.assign(&[("a", 8), ("b", 2)], at(92)), "another stream is tried at once");
        assert_eq!(lab.layout()[0], ("a".to_owned(), 0, 0));
    }
}

#[test]
fn columns_are_made_of_sources_and_streams_of_columns() {
    let mut lab = Lab::new(2, Some(2));
    let all = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)];
    lab.assign(&all, at(0));
    lab.is(&[("a", 0, 0), ("b", 0, 1), ("c", 0, 2), ("d", 0, 3), ("e", 1, 0)]);
    assert_eq!(
        lab.tiles.jobs(),
        [Job::Tiles, Job::Column(0), Job::Column(1), Job::Column(2)].into()
    );
    let column = lab.tiles.made(Job::Column(1)).pop().unwrap();
    let tiles = |made: &Made| -> Vec<(u8, String, u32)> {
        let tiles = made.tiles.iter();
        tiles.map(|tile| (tile.place, tile.participant.to_string(), tile.source)).collect()
    };
    assert_eq!(
        (column.places, tiles(&column)),
        (2, vec![(0, "c".to_owned(), 3), (1, "d".to_owned(), 4)])
    );
    let streams = lab.tiles.made(Job::Tiles);
    assert_eq!(streams.len(), 2);
    let last = streams[0].tiles.last().unwrap();
    assert_eq!(
        (streams[0].places, last.place, last.source, last.part),
        (4, 3, column.ssrc, Some((4, 1, 2)))
    );
    // A column without tiles is over; those of other streams keep their numbers.
    lab.assign(&[("a", 1), ("e", 5)], at(1));
    assert_eq!(lab.tiles.jobs(), [Job::Tiles, Job::Column(0), Job::Column(2)].into());
    // Who comes fills it again: it is another stream.
    lab.assign(&[("a", 1), ("e", 5), ("f", 6), ("g", 7)], at(2));
    lab.is(&[("a", 0, 0), ("f", 0, 1), ("g", 0, 2), ("e", 1, 0)]);
    assert_ne!(lab.tiles.ssrcs(Job::Column(1)), [column.ssrc]);
}

#[test]
fn a_mixer_that_dies_renews_what_it_made_and_nothing_else() {
    let mut lab = Lab::new(2, Some(2));
    lab.assign(&[("a", 1), ("b", 2), ("c", 3)], at(0));
    let area = Some(Area {
        x: 0,
        y: 0,
        width: 176,
        height: 144,
    });
    let shown = Shown {
        area,
        pictures: 5,
        ..Shown::default()
    };
    lab.says(Job::Column(0), 0, 1, refused(7, 0, false), 1);
    lab.says(Job::Tiles, 0, 1, shown, 1);
    let first = |lab: &Lab| lab.tiles.streams()[0].tiles[&0].shown().clone();
    assert_eq!(
        (first(&lab).area, first(&lab).pictures),
        (area, 7),
        "where it is says one mixer, how many pictures came the other"
    );
    let jobs = [Job::Tiles, Job::Column(0), Job::Column(1)];
    let before = jobs.map(|job| lab.tiles.ssrcs(job));
    let layout = lab.layout();
    lab.with(|tiles, fresh| tiles.renew(Job::Column(0), fresh));
    assert_eq!(first(&lab), Shown::default());
    let after = jobs.map(|job| lab.tiles.ssrcs(job));
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert_ne!(after[1], before[1]);
    assert_eq!(lab.tiles.made(Job::Tiles)[0].tiles[0].source, after[1][0]);
    lab.with(|tiles, fresh| tiles.renew(Job::Tiles, fresh));
    let last = jobs.map(|job| lab.tiles.ssrcs(job));
    assert_ne!(last[0], after[0]);
    assert_eq!(last[1..], after[1..]);
    assert_eq!(lab.layout(), layout);
}

#[test]
fn who_decides_what_a_column_is_like_loses_its_tile_when_that_cannot_be_joined_and_the_others_keep_theirs() {
    let mut lab = Lab::new(3, Some(2));
    // "odd" is the first of the second column, and whoever comes after it there is refused for its sake.
    let all = [("a", 1), ("b", 2), ("c", 3), ("odd", 9), ("d", 4), ("e", 5)];
    lab.assign(&all, at(0));
    lab.is(&[("a", 0, 0), ("b", 0, 1), ("c", 0, 2), ("odd", 0, 3), ("d", 0, 4), ("e", 0, 5)]);
    let column = lab.tiles.ssrcs(Job::Column(1));
    let mut lost = Vec::new();
    for seconds in 1..=4 {
        let count = 10 * seconds;
        lost.extend(lab.says(Job::Column(1), 0, 9, refused(count, 0, false), seconds));
        lost.extend(lab.says(Job::Column(1), 1, 4, refused(count, count, true), seconds));
        lost.extend(lab.says(Job::Tiles, 0, 1, refused(count, 0, false), seconds));
        lost.extend(lab.says(Job::Tiles, 3, 9, refused(count, count, true), seconds));
    }
    assert_eq!(lost, one(&[("odd", "no")]));
    assert_ne!(lab.tiles.ssrcs(Job::Column(1)), column, "the column begins anew without it");
    lab.assign(&all, at(5));
    lab.is(&[("a", 0, 0), ("b", 0, 1), ("c", 0, 2), ("d", 0, 4), ("e", 0, 5)]);
    assert_eq!(lab.tiles.untiled().get("odd").map(String::as_str), Some("no"));
    // From now on what is said of the sources counts again.
    lab.says(Job::Column(1), 1, 4, refused(1, 1, true), 6);
    assert_eq!(lab.says(Job::Column(1), 1, 4, refused(9, 9, true), 10), one(&[("d", "no")]));
}

/// What happens to a conference of up to twelve sources.
#[derive(Clone, Debug)]
enum Happens {
    Join(u32),
    Leave(u32),
    /// Its encoder begins anew.
    Anew(u32),
    Refused(u32),
    /// By the mixer of the second level.
    ColumnRefused(u16),
    Dies(u16),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (0..12_u32).prop_map(Happens::Join),
        3 => (0..12_u32).prop_map(Happens::Leave),
        1 => (0..12_u32).prop_map(Happens::Anew),
        1 => (0..12_u32).prop_map(Happens::Refused),
        1 => (0..8_u16).prop_map(Happens::ColumnRefused),
        2 => (0..9_u16).prop_map(Happens::Dies),
    ]
}

/// Those who are there, in the order in which they came, with their SSRCs.
type People = Vec<(u32, u32)>;

fn sources(people: &People) -> Vec<Source> {
    people
        .iter()
        .map(|(name, ssrc)| (name.to_string().as_str().into(), Ok(*ssrc)))
        .collect()
}

/// What the mixers are told fits together.
fn check(tiles: &Tiles, people: &People) -> Result<(), TestCaseError> {
    let there: BTreeMap<String, u32> = people.iter().map(|(name, ssrc)| (name.to_string(), *ssrc)).collect();
    let mut seen = BTreeSet::new();
    for (name, ..) in layout(tiles) {
        prop_assert!(there.contains_key(&name), "{name} is gone and has a tile");
        prop_assert!(seen.insert(name.clone()), "{name} has two tiles");
        prop_assert!(!tiles.untiled().contains_key(&*name), "{name} has a tile and has none");
    }
    for name in there.keys() {
        prop_assert!(
            seen.contains(name) || tiles.untiled().contains_key(&**name),
            "{name} has no tile, and nobody says so"
        );
    }
    // Every source is told to the mixer that it goes to, and to no other.
    let goes_into: BTreeMap<String, Job> = tiles.sources().map(|(name, job)| (name.to_string(), job)).collect();
    let columns: BTreeMap<u32, (Job, Made)> = tiles
        .jobs()
        .into_iter()
        .filter(|job| *job != Job::Tiles)
        .flat_map(|job| tiles.made(job).into_iter().map(move |made| (made.ssrc, (job, made))))
        .collect();
    for (job, made) in columns.values() {
        for tile in &made.tiles {
            prop_assert_eq!(goes_into.get(&*tile.participant), Some(job));
            prop_assert_eq!(there.get(&*tile.participant), Some(&tile.source));
            prop_assert!(tile.place < made.places && tile.part.is_none());
        }
    }
    let mut joined = 0;
    for made in tiles.made(Job::Tiles) {
        for tile in &made.tiles {
            joined += 1;
            prop_assert!(tile.place < made.places);
            let Some((contributor, part, parts)) = tile.part else {
                prop_assert_eq!(goes_into.get(&*tile.participant), Some(&Job::Tiles));
                prop_assert_eq!(there.get(&*tile.participant), Some(&tile.source));
                continue;
            };
            let (_, column) = columns.get(&tile.source).expect("a tile of a column that nobody makes");
            let source = column
                .tiles
                .iter()
                .find(|one| one.place == part)
                .expect("a tile that its column does not have");
            prop_assert_eq!(
                (&source.participant, source.source, column.places),
                (&tile.participant, contributor, parts)
            );
        }
    }
    prop_assert_eq!(joined, seen.len());
    let ssrcs: Vec<u32> = tiles.ssrcs(Job::Tiles).into_iter().chain(columns.keys().copied()).collect();
    prop_assert_eq!(ssrcs.iter().collect::<BTreeSet<_>>().len(), ssrcs.len(), "an SSRC is used twice");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_source_has_one_tile_and_keeps_it_whatever_happens_to_others(
        (places, columns) in prop_oneof![(1..4_u8).prop_map(|places| (places, None)), (1..4_u8, 2..4_u8).prop_map(|(places, columns)| (places, Some(columns)))],
        steps in proptest::collection::vec(happens(), 0..80),
    ) {
        let (mut lab, mut people, mut next) = (Lab::new(places, columns), People::new(), 0);
        for (seconds, step) in (0..).step_by(5).zip(steps) {
            let before: BTreeMap<String, (usize, u8)> = lab.layout().into_iter().map(|(name, stream, place)| (name, (stream, place))).collect();

            let jobs: Vec<(Job, Vec<u32>)> = lab.tiles.jobs().into_iter().map(|job| (job, lab.tiles.ssrcs(job))).collect();
            let mut lost: Vec<String> = Vec::new();
            match step {
                Happens::Join(name) => {
                    next += 1;
                    if !people.iter().any(|(one, _)| *one == name) {
                        people.push((name, next));
                    }
                }
                Happens::Leave(name) => people.retain(|(one, _)| *one != name),
                Happens::Anew(name) => {
                    next += 1;
                    people.iter_mut().filter(|(one, _)| *one == name).for_each(|(_, ssrc)| *ssrc = next);
                }
                Happens::Refused(name) => {
                    let found = lab.tiles.sources().find(|(one, _)| ***one == *name.to_string()).map(|(_, job)| job);
                    if let Some(job) = found {
                        let made = lab.tiles.made(job).into_iter().flat_map(|made| made.tiles);
                        let tile = made.into_iter().find(|tile| *tile.participant == *name.to_string()).unwrap();
                        for (count, later) in [(1, 0), (9, 4)] {
                            let said = lab.says(job, tile.place, tile.source, refused(1000 * seconds + count, 1000 * seconds + count, true), seconds + later);
                            lost.extend(said.into_iter().map(|(name, _)| name));
                        }
                    }
                }
                Happens::ColumnRefused(number) => {
                    let job = Job::Column(number);
                    if let Some(made) = lab.tiles.made(job).pop() {
                        let streams = lab.tiles.made(Job::Tiles).into_iter().flat_map(|made| made.tiles);
                        let tile = streams.into_iter().find(|tile| tile.source == made.ssrc).unwrap();
                        for (count, later) in [(1, 0), (9, 4)] {
                            let said = lab.says(Job::Tiles, tile.place, tile.part.unwrap().0, refused(1000 * seconds + count, 1000 * seconds + count, true), seconds + later);
                            lost.extend(said.into_iter().map(|(name, _)| name));
                        }
                    }
                }
                Happens::Dies(number) => {
                    let job = number.checked_sub(1).map_or(Job::Tiles, Job::Column);
                    let there = lab.tiles.jobs().contains(&job);
                    lab.with(|tiles, fresh| tiles.renew(job, fresh));
                    for (other, ssrcs) in &jobs {
                        prop_assert_eq!(lab.tiles.ssrcs(*other) == *ssrcs, *other != job, "{:?} died, {:?}", job, other);
                    }
                    prop_assert!(there || jobs.iter().all(|(other, _)| *other != job));
                }
            }
            let list = sources(&people);
            lab.with(|tiles, fresh| tiles.assign(&list, fresh, at(seconds + 4)));
            check(&lab.tiles, &people)?;
            let after: BTreeMap<String, (usize, u8)> = lab.layout().into_iter().map(|(name, stream, place)| (name, (stream, place))).collect();
            for (name, place) in before {
                let stays = people.iter().any(|(one, _)| one.to_string() == name) && !lost.contains(&name);
                prop_assert_eq!(after.get(&name), stays.then_some(&place), "{}", name);
            }
            prop_assert!(!lab.with(|tiles, fresh| tiles.assign(&list, fresh, at(seconds + 4))), "it changes without a reason");
        }
    }
}
