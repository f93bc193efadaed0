//! Feedback: the best downlink with hysteresis, levels against model receivers, joins, pauses, key frames.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_conference::adaptation::{Adaptation, Decision, Feedback, Medium, Streams};
use shunt_conference::best_downlink::BestDownlink;
use shunt_conference::downlink::{Climb, LossBound, STALE, Weights};
use shunt_conference::key_frames::KeyFrames;
use shunt_conference::membership::TARGETS;
use shunt_conference::policy::{Estimate, NoLevel, Policy, Receiver, Stepwise, Trend};
use shunt_conference::tables::Name;
use shunt_latch::Time;
use shunt_rtp::rtcp::{Report, least_rate, receiver_report, remb, walk};
use std::collections::HashMap;
use std::time::Duration;

/// T0, T0 and T1, all: of a captured AV1 stream, scaled.
const RATES: [f64; 3] = [190e3, 350e3, 610e3];
const TICK: f64 = 0.22;

fn at(seconds: f64) -> Time {
    Time::from(Duration::from_secs_f64(seconds))
}

fn name(text: &str) -> Name {
    Name::from(text)
}

#[test]
fn the_first_is_chosen_and_the_better_one_only_after_a_while() {
    let mut best = BestDownlink::new(STALE);
    let (b, c) = (name("b"), name("c"));
    assert!(best.estimate(&b, 1e6, at(0.0)));
    assert!(!best.estimate(&c, 2e6, at(0.1)));
    assert!(best.estimate(&b, 1e6, at(1.0)) && !best.estimate(&c, 2e6, at(2.0)));
    assert!(best.estimate(&c, 2e6, at(2.2)) && !best.estimate(&b, 1e6, at(2.3)));
}

#[test]
fn a_little_better_or_better_for_a_moment_changes_nothing() {
    let mut best = BestDownlink::new(STALE);
    let (b, c) = (name("b"), name("c"));
    best.estimate(&b, 1e6, at(0.0));
    for tick in 1..300 {
        let swings = if tick % 40 < 8 { 3e6 } else { 0.5e6 };
        best.estimate(&c, if tick < 100 { 1.05e6 } else { swings }, at(f64::from(tick) / 10.0));
        best.estimate(&b, 1e6, at(f64::from(tick) / 10.0));
    }
    assert_eq!(best.chosen(), Some(&b));
}

#[test]
fn who_leaves_or_falls_silent_is_not_heard_any_more() {
    let mut best = BestDownlink::new(STALE);
    best.estimate(&name("b"), 2e6, at(0.0));
    best.estimate(&name("c"), 1e6, at(0.0));
    best.leave("b", at(1.0));
    assert!(best.chosen() == Some(&name("c")) && best.average("b").is_none());
    best.estimate(&name("d"), 0.1e6, at(2.0));
    assert!(best.estimate(&name("d"), 0.1e6, at(7.1)) && best.average("c").is_none());
    best.leave("d", at(8.0));
    assert_eq!(best.chosen(), None);
}

#[test]
fn an_estimate_about_several_senders_is_shared() {
    let split = |sent: &[f64]| Weights::new(sent.to_vec()).split(900.0);
    assert_eq!(split(&[200.0, 100.0]), [600.0, 300.0]);
    assert_eq!(
        split(&[200.0, 0.0, 100.0]),
        [600.0, 450.0, 300.0],
        "who has sent nothing yet takes nothing from the others"
    );
    assert_eq!(split(&[0.0, 0.0]), [450.0, 450.0]);
    assert_eq!(Weights::new(vec![200.0, 0.0, 100.0]).total(), 300.0);
}

#[test]
fn losses_bound_a_downlink_until_they_stop() {
    let mut bound = LossBound::default();
    bound.report(0.05, 1e6);
    assert_eq!(bound.bitrate, None);
    bound.report(0.2, 1e6);
    assert_eq!(bound.bitrate, Some(0.9e6));
    for _ in 0..11 {
        bound.report(0.0, 1e6);
    }
    assert_eq!(bound.bitrate, None, "it has climbed beyond what an estimate says");
}

#[test]
fn losses_never_bound_a_downlink_below_what_arrives() {
    let mut bound = LossBound::default();
    for _ in 0..10 {
        bound.report(0.4, 1e6);
    }
    assert_eq!(bound.bitrate, Some(0.6e6), "the reports of one second, before less is sent");
    bound.report(0.4, 0.6e6);
    assert!(bound.bitrate.is_some_and(|bound| bound < 0.6e6), "{bound:?}");
}

#[test]
fn an_estimate_that_climbs_is_given_time_and_one_that_plunges_is_not() {
    let mut climb = Climb::default();
    assert_eq!(climb.carries(1.5e6, 1e6, at(0.0)), 1.5e6);
    assert_eq!(
        climb.carries(1.5e6, 3e6, at(1.0)),
        1.001 * 3e6,
        "more is sent, and the estimate was made of less"
    );
    assert_eq!(climb.carries(1.3e6, 3e6, at(2.0)), 1.001 * 3e6, "a dip of a moment");
    assert_eq!(climb.carries(1.3e6, 3e6, at(5.1)), 1.3e6, "a dip that lasts");
    let mut climb = Climb::default();
    climb.carries(1.5e6, 1e6, at(0.0));
    climb.carries(1.5e6, 3e6, at(1.0));
    assert_eq!(climb.carries(0.9e6, 3e6, at(1.2)), 0.9e6, "a plunge counts at once");
}

#[test]
fn where_there_is_no_room_nothing_climbs() {
    let mut climb = Climb::default();
    climb.carries(1e6, 10e3, at(0.0));
    for step in 1..20_u32 {
        let (sent, now) = (10e3 * 1.2_f64.powi(step.try_into().unwrap()), f64::from(step) * 2.0);
        assert_eq!(climb.carries(0.0, sent, at(now)), 0.0, "{sent} bit/s at {now} s");
    }
}

#[test]
fn many_small_steps_are_one_large_one() {
    let mut climb = Climb::default();
    let (mut sent, mut now) = (1e6, 0.0);
    climb.carries(1e6, sent, at(now));
    for _ in 0..10 {
        (sent, now) = (sent * 1.06, now + 10.0);
        assert!(climb.carries(1e6, sent, at(now)) >= sent || sent < 1.1e6, "{sent} at {now} s");
    }
}

/// A browser's estimate: it follows the link, never gets beyond 1.5 times what arrives, and climbs 8 % a second.
#[derive(Clone)]
struct Link {
    bitrate: f64,
    estimate: f64,
}

impl Link {
    fn say(&mut self, sent: f64) -> f64 {
        let arriving = sent.min(self.bitrate);
        self.estimate = if sent > self.bitrate {
            0.85 * arriving
        } else {
            (self.estimate * 1.08f64.powf(TICK)).min(1.5 * arriving + 10e3).min(self.bitrate)
        };
        self.estimate
    }
}

fn rate(level: usize) -> f64 {
    level.checked_sub(1).map_or(0.0, |at| RATES[at])
}

/// The moves of one receiver of one sender over a link.
fn watch(link: impl Fn(f64) -> f64, seconds: f64, start: f64, level: usize) -> (Vec<(f64, usize)>, usize) {
    let (mut receiver, mut browser) = (
        Receiver::new(level),
        Link {
            bitrate: 0.0,
            estimate: start,
        },
    );
    let mut moves = Vec::new();
    let mut now = 0.0;
    while now < seconds {
        browser.bitrate = link(now);
        let bitrate = browser.say(rate(receiver.level));
        let estimate = Estimate {
            time: at(now),
            bitrate,
            rates: &RATES,
        };
        if receiver.estimate(&Stepwise, &estimate).unwrap().is_some() {
            moves.push((now, receiver.level));
        }
        now += TICK;
    }
    (moves, receiver.level)
}

#[test]
fn a_good_receiver_gets_to_the_top_though_its_estimate_is_bound_by_what_arrives() {
    let (moves, level) = watch(|_| 5e6, 90.0, 100e3, 1);
    let levels: Vec<usize> = moves.iter().map(|(_, level)| *level).collect();
    assert_eq!((levels, level), (vec![2, 3], 3));
}

#[test]
fn a_link_that_narrows_and_widens() {
    let (moves, level) = watch(|now| if (60.0..120.0).contains(&now) { 450e3 } else { 5e6 }, 260.0, 200e3, 3);
    assert!(
        moves.iter().any(|(now, level)| *level == 2 && (60.0..62.0).contains(now)),
        "{moves:?}"
    );
    assert_eq!(level, 3);
}

#[test]
fn a_narrow_link_is_not_tried_again_and_again() {
    let (moves, _) = watch(|_| 420e3, 300.0, 200e3, 3);
    let tries = moves.iter().filter(|(_, level)| *level == 3).count();
    assert!(tries <= 11, "{moves:?}");
}

#[test]
fn a_stream_whose_lowest_layer_does_not_fit_is_paused_and_comes_back() {
    // Other streams' packets keep the estimate alive while this one is paused.
    let mut receiver = Receiver::new(3);
    let (mut now, mut paused, mut back) = (0.0, None, None);
    while now < 120.0 {
        let bitrate = if (20.0..40.0).contains(&now) { 80e3 } else { 900e3 };
        let estimate = Estimate {
            time: at(now),
            bitrate,
            rates: &RATES,
        };
        receiver.estimate(&Stepwise, &estimate).unwrap();
        if receiver.level == 0 && paused.is_none() {
            paused = Some(now);
        }
        if receiver.level > 0 && paused.is_some() && back.is_none() {
            back = Some(now);
        }
        now += TICK;
    }
    let (paused, back) = (paused.expect("it is paused"), back.expect("it comes back"));
    assert!((23.0..26.0).contains(&paused), "after three seconds: {paused}");
    assert!((40.0..44.0).contains(&back), "{back}");
    assert_eq!(receiver.level, 3);
}

#[test]
fn a_paused_receiver_of_whom_nothing_is_heard_is_tried_again() {
    let mut receiver = Receiver::new(1);
    for tick in 0..30 {
        let estimate = Estimate {
            time: at(f64::from(tick)),
            bitrate: if tick == 0 { 500e3 } else { 20e3 },
            rates: &RATES,
        };
        receiver.estimate(&Stepwise, &estimate).unwrap();
    }
    assert_eq!(receiver.level, 0);
    assert!(!receiver.retry(at(30.0)) && receiver.retry(at(60.0)) && receiver.level == 1);
}

struct Broken;

impl Policy for Broken {
    fn select(&self, _: usize, _: &Trend, _: &Estimate) -> usize {
        9
    }
}

#[test]
fn a_policys_answer_that_is_no_level_changes_nothing() {
    let mut receiver = Receiver::new(2);
    let estimate = Estimate {
        time: at(0.0),
        bitrate: 1e9,
        rates: &RATES,
    };
    assert_eq!(receiver.estimate(&Broken, &estimate), Err(NoLevel { level: 9, top: 3 }));
    assert_eq!(receiver.level, 2);
}

#[test]
fn many_wishes_are_one_request() {
    let mut frames = KeyFrames::default();
    assert!(frames.wanted(at(10.0)));
    assert!(
        (1..400).filter(|n| frames.wanted(at(10.0 + f64::from(*n) / 1000.0))).count() == 0,
        "400 PLIs in 0.4 s"
    );
    assert_eq!(frames.due_at(), Some(at(10.5)));
    assert!(!frames.due(at(10.4)) && frames.due(at(10.5)) && !frames.due(at(11.5)));
    assert!(frames.wanted(at(12.0)) && !frames.wanted(at(12.1)));
    frames.seen();
    assert!(!frames.due(at(13.0)));
}

/// A room of senders with the same rates, some of them not measured yet.
#[derive(Default)]
struct Room {
    known: HashMap<Name, Vec<f64>>,
    levels: HashMap<(Name, Name), usize>,
}

impl Streams for Room {
    fn rates(&self, sender: &Name, _: Medium) -> &[f64] {
        self.known.get(sender).map_or(&[], |rates| &rates[..])
    }
    fn level(&self, sender: &Name, _: Medium, receiver: &Name) -> Option<usize> {
        self.levels.get(&(sender.clone(), receiver.clone())).copied()
    }
    fn needs_key_frame(&self, _: &Name, _: Medium) -> bool {
        true
    }
}

/// `before` people are in a healthy room, and others join; how many times anybody is thinned in the two minutes after.
fn thinned_by_joins(before: usize, joins: usize) -> usize {
    let people: Vec<Name> = (0..before + joins).map(|n| name(&format!("p{n}"))).collect();
    let mut room = Room::default();
    let mut adaptation = Adaptation::default();
    let mut links: Vec<Link> = people
        .iter()
        .map(|_| Link {
            bitrate: 50e6,
            estimate: 300e3,
        })
        .collect();
    let (mut thinned, mut now) = (0, 0.0);
    while now < 180.0 {
        let here = if now < 60.0 { before } else { before + joins };
        // Rates are read once a second, the first of them of half a second's packets.
        for (n, sender) in people[..here].iter().enumerate() {
            let since: f64 = if n < before { now } else { now - 60.0 };
            let seen = 1.0 - 0.5f64.powf(since.floor());
            if since >= 1.0 {
                room.known.insert(sender.clone(), RATES.map(|rate| rate * seen).to_vec());
            }
        }
        for (n, receiver) in people[..here].iter().enumerate() {
            let level = |sender: &Name| room.levels.get(&(sender.clone(), receiver.clone())).copied().unwrap_or(3);
            let others: Vec<Name> = people[..here].iter().filter(|one| *one != receiver).cloned().collect();
            let sent = others.iter().map(|sender| rate(level(sender))).sum();
            let mut estimate = links[n].say(sent);
            // Key frames for those who join make estimates dip.
            if here > before && (60.5..62.5).contains(&now) && n < before {
                estimate *= 0.85;
            }
            let streams: Vec<(u32, Name)> = others
                .iter()
                .enumerate()
                .map(|(at, sender)| (100 + at as u32, sender.clone()))
                .collect();
            let ssrcs: Vec<u32> = streams.iter().map(|(ssrc, _)| *ssrc).collect();
            let packet = remb(7, estimate as u64, &ssrcs).unwrap();
            let feedback = Feedback {
                receiver,
                medium: Medium::Video,
                transport: 0,
                streams: &streams,
                packet: &packet,
            };
            for decision in adaptation.take(&feedback, &room, &Stepwise, at(now)).unwrap() {
                if let Decision::Level {
                    sender,
                    receiver,
                    before,
                    level,
                    ..
                } = decision
                {
                    thinned += usize::from(level < before && now >= 60.0);
                    room.levels.insert((sender, receiver), level);
                }
            }
        }
        now += TICK;
    }
    thinned
}

#[test]
fn joins_thin_nobody_while_nothing_is_lost() {
    assert_eq!(thinned_by_joins(3, 6), 0, "six join a room of three");
    assert_eq!(thinned_by_joins(2, 1), 0, "one joins two");
    assert_eq!(thinned_by_joins(9, 1), 0, "a tenth");
}

#[test]
fn a_sender_hears_the_best_downlink_and_its_reports() {
    let (mut adaptation, mut room) = (Adaptation::default(), Room::default());
    room.known.insert(name("a"), RATES.to_vec());
    let streams = [(100, name("a"))];
    let report = Report {
        ssrc: 100,
        fraction_lost: 3,
        cumulative_lost: 7,
        highest_sequence: 1000,
        jitter: 90,
        lsr: 0,
        dlsr: 0,
    };
    let mut forwarded = Vec::new();
    for (receiver, bitrate) in [("b", 2_000_000), ("c", 1_000_000)] {
        let packet = [receiver_report(9, &[report]), remb(9, bitrate, &[100]).unwrap()].concat();
        let receiver = name(receiver);
        let feedback = Feedback {
            receiver: &receiver,
            medium: Medium::Video,
            transport: 0,
            streams: &streams,
            packet: &packet,
        };
        for decision in adaptation.take(&feedback, &room, &Stepwise, at(0.0)).unwrap() {
            if let Decision::Forward { packet, .. } = decision {
                let items: Vec<_> = walk(&packet).map(Result::unwrap).collect();
                forwarded.push((
                    receiver.clone(),
                    items[0].reports().next().unwrap(),
                    items[1].remb().unwrap().bitrate,
                ));
            }
        }
    }
    let [(receiver, block, bitrate)] = &forwarded[..] else {
        panic!("{forwarded:?}")
    };
    assert_eq!((&**receiver, block), ("b", &report));
    assert!((1_990_000..=2_000_000).contains(bitrate), "{bitrate}");
    assert_eq!((adaptation.estimates, adaptation.reports), (2, 2));
    adaptation.leave(&name("b"), at(1.0));
}

/// Levels that a sender without layers is sent in, to receivers with these estimates at each second (bit/s).
fn levels_without_layers(receivers: &[(&str, &dyn Fn(u32) -> u64)]) -> Vec<(u32, String, usize)> {
    levels_from(receivers, None)
}

/// The same, where the receivers' side says from which rate on the stream is of use.
fn levels_from(receivers: &[(&str, &dyn Fn(u32) -> u64)], least: Option<u64>) -> Vec<(u32, String, usize)> {
    let (mut adaptation, mut room) = (Adaptation::default(), Room::default());
    room.known.insert(name("a"), vec![400e3]);
    let streams = [(100, name("a"))];
    let mut levels = Vec::new();
    for second in 0..60 {
        for (receiver, bitrate) in receivers {
            let mut packet = [receiver_report(9, &[]), remb(9, bitrate(second), &[100]).unwrap()].concat();
            packet.extend(least.map(|least| least_rate(9, 100, least)).unwrap_or_default());
            let receiver = name(receiver);
            let feedback = Feedback {
                receiver: &receiver,
                medium: Medium::Video,
                transport: 0,
                streams: &streams,
                packet: &packet,
            };
            for decision in adaptation.take(&feedback, &room, &Stepwise, at(f64::from(second))).unwrap() {
                if let Decision::Level { level, .. } = decision {
                    room.levels.insert((name("a"), receiver.clone()), level);
                    levels.push((second, receiver.to_string(), level));
                }
            }
        }
    }
    levels
}

#[test]
fn a_picture_without_layers_is_paused_for_who_cannot_take_it_and_is_not_heard_by_its_sender() {
    let narrow = |second: u32| if (10..30).contains(&second) { 100_000 } else { 1_000_000 };
    let levels = levels_without_layers(&[("b", &|_| 2_000_000), ("c", &narrow)]);
    let [(paused, first, 0), (back, second, TARGETS)] = &levels[..] else {
        panic!("{levels:?}")
    };
    assert_eq!((first.as_str(), second.as_str()), ("c", "c"));
    assert!((10..=15).contains(paused) && (30..=35).contains(back), "{levels:?}");
    assert_eq!(
        levels_without_layers(&[("c", &narrow)]),
        [],
        "its sender is told, and sends less itself"
    );
}

#[test]
fn what_is_thinned_behind_is_paused_only_where_not_even_its_least_fits() {
    let narrow = |second: u32| if (10..30).contains(&second) { 100_000 } else { 1_000_000 };
    let receivers: [(&str, &dyn Fn(u32) -> u64); 2] = [("b", &|_| 2_000_000), ("c", &narrow)];
    assert_eq!(levels_from(&receivers, Some(90_000)), [], "the lowest layer fits all the time");
    assert_eq!(levels_from(&receivers, Some(150_000)), levels_without_layers(&receivers));
    assert_eq!(levels_from(&receivers, Some(u64::MAX)), levels_without_layers(&receivers));
}

proptest! {
    #[test]
    fn exactly_one_is_chosen_and_it_is_there(steps in proptest::collection::vec((0..3usize, 0.0..1e7f64, 0.0..3.0f64, any::<bool>()), 0..80)) {
        let names = [name("b"), name("c"), name("d")];
        let (mut best, mut now, mut heard) = (BestDownlink::new(STALE), 0.0, HashMap::new());
        for (who, bitrate, passed, leaves) in steps {
            now += passed;
            if leaves {
                best.leave(&names[who], at(now));
                heard.remove(&names[who]);
            } else {
                let passes = best.estimate(&names[who], bitrate, at(now));
                heard.insert(names[who].clone(), now);
                prop_assert_eq!(passes, best.chosen() == Some(&names[who]));
                let chosen = best.chosen().expect("somebody was just heard");
                prop_assert!(now - heard[chosen] <= STALE.as_secs_f64());
            }
        }
    }

    #[test]
    fn any_estimates_give_a_level_that_is_there(
        steps in proptest::collection::vec((0.0..2.0f64, 0.0..1e8f64, proptest::collection::vec(0.0..1e7f64, 1..4)), 1..40), start in 0..4usize,
    ) {
        let (mut receiver, mut now) = (Receiver::new(start), 0.0);
        for (passed, bitrate, mut rates) in steps {
            now += passed;
            rates.sort_by(f64::total_cmp);
            let before = receiver.level;
            let changed = receiver.estimate(&Stepwise, &Estimate { time: at(now), bitrate, rates: &rates }).unwrap();
            prop_assert!(receiver.level <= rates.len() && receiver.level <= before + 1);
            prop_assert!(changed.is_none_or(|old| old != receiver.level));
        }
    }
}
