//! Tests of load shedding: single decisions, and a queue with one server.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const PATIENCE: Patience = Patience(Duration::from_millis(200));

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn at(time: Duration) -> Time {
    Time::from(time)
}

fn admission() -> Admission {
    Admission::new(Some(PATIENCE))
}

#[test]
fn a_command_whose_sender_has_given_up_is_not_carried_out_unless_it_ends_a_call() {
    for (kind, admitted) in [(Kind::Ends, true), (Kind::Continues, false), (Kind::Begins, false)] {
        assert_eq!(admission().admits(at(ms(9000)), ms(9000), || kind), admitted, "{kind:?}");
    }
}

#[test]
fn a_single_stall_refuses_nothing_that_is_answered_in_time() {
    let mut admission = admission();
    assert!(admission.admits(at(ms(1000)), ms(0), || Kind::Begins));
    for waited in [99, 98, 60, 55, 50, 1] {
        assert!(admission.admits(at(ms(1100)), ms(waited), || Kind::Begins), "{waited}");
    }
}

#[test]
fn a_stall_long_after_another_is_no_overload() {
    let mut admission = admission();
    for second in 1..10 {
        assert!(admission.admits(at(ms(1000 * second)), ms(90), || Kind::Begins));
        admission.is_idle();
    }
}

#[test]
fn a_queue_that_stays_long_sheds_new_calls_and_nothing_else() {
    let mut admission = admission();
    for (now, begins) in [(0, true), (49, true), (50, false), (80, false)] {
        assert_eq!(admission.admits(at(ms(now)), ms(60), || Kind::Begins), begins, "{now}");
        assert!(admission.admits(at(ms(now)), ms(60), || Kind::Continues));
        assert!(admission.admits(at(ms(now)), ms(60), || Kind::Ends));
    }
    assert!(admission.admits(at(ms(90)), ms(49), || Kind::Begins), "the queue is short again");
    assert!(admission.admits(at(ms(91)), ms(60), || Kind::Begins));
}

#[test]
fn without_a_limit_everything_is_carried_out() {
    assert!(Admission::new(None).admits(at(ms(9000)), ms(9000), || Kind::Begins));
}

/// What became of calls that each send U, L after the answer, and D after that.
#[derive(Debug, Default)]
struct Served {
    completed: u64,
    refused_ends: u64,
}

/// Calls that begin at a rate, at a server that takes `cost` for a command that it carries out and a twentieth of it for one that it refuses.
fn simulate(calls: u64, apart: Duration, cost: Duration) -> Served {
    let (mut admission, mut served) = (admission(), Served::default());
    let mut queue: VecDeque<(Duration, Kind)> = VecDeque::new();
    // The D of a call comes a second after the answer to its L.
    let mut later: VecDeque<(Duration, Kind)> = VecDeque::new();
    let (mut now, mut begun) = (Duration::ZERO, 0);
    loop {
        while begun < calls && apart * u32::try_from(begun).unwrap_or(u32::MAX) <= now {
            queue.push_back((apart * u32::try_from(begun).unwrap_or(u32::MAX), Kind::Begins));
            begun += 1;
        }
        while later.front().is_some_and(|(due, _)| *due <= now) {
            queue.extend(later.pop_front());
        }
        let Some((came, kind)) = queue.pop_front() else {
            if begun == calls && later.is_empty() {
                return served;
            }
            admission.is_idle();
            now += cost / 4;
            continue;
        };
        if !admission.admits(at(now), now.saturating_sub(came), || kind) {
            served.refused_ends += u64::from(kind == Kind::Ends);
            now += cost / 20;
            continue;
        }
        now += cost;
        let in_time = now.saturating_sub(came) <= PATIENCE.0;
        match kind {
            Kind::Begins if in_time => queue.push_back((now, Kind::Continues)),
            Kind::Continues if in_time => later.push_back((now + ms(1000), Kind::Ends)),
            Kind::Ends => served.completed += 1,
            Kind::Begins | Kind::Continues => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// At 1.2 to 4 times the highest rate the server completes calls at nearly its highest rate.
    #[test]
    fn an_overload_costs_no_more_than_what_is_beyond_the_highest_rate(percent in 120_u32..400, cost_us in 100_u64..1000) {
        let cost = Duration::from_micros(cost_us);
        let highest = 1.0 / (3.0 * cost.as_secs_f64());
        let apart = (3 * cost) * 100 / percent;
        let seconds = 10.0;
        let calls = (seconds / apart.as_secs_f64()) as u64;
        let served = simulate(calls, apart, cost);
        prop_assert_eq!(served.refused_ends, 0);
        // A refusal costs a twentieth of a command.
        let refusing = (f64::from(percent) / 100.0 - 1.0) / 60.0;
        prop_assert!(served.completed as f64 >= 0.85 * (1.0 - refusing) * highest * seconds, "{} of {} calls, {} at best", served.completed, calls, highest * seconds);
    }

    #[test]
    fn below_the_highest_rate_nothing_is_refused(percent in 20_u32..95, cost_us in 100_u64..1000) {
        let cost = Duration::from_micros(cost_us);
        let apart = (3 * cost) * 100 / percent;
        let served = simulate(2000, apart, cost);
        prop_assert_eq!(served.completed, 2000);
    }
}
