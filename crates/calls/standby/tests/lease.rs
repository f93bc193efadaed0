//! The lease of several agents at one store, as pure functions: which one is active, and when.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_standby::{Answer, Ask, Change, Holder, Lease, UNDECIDED, WriteAgain};
use std::time::Duration;

const LENGTH: Duration = Duration::from_millis(1000);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Behaves as Redis with the scripts of the journal.
#[derive(Default)]
struct Store {
    token: Option<u64>,
    /// Text, and when it expires.
    lease: Option<(String, Duration)>,
}

impl Store {
    fn answer(&mut self, now: Duration, me: &Holder, ask: &Ask) -> Answer {
        self.lease = self.lease.take().filter(|(_, end)| now < *end);
        match ask {
            Ask::Take {
                may_take,
                least,
                instead_of,
                spare_emptied,
            } => {
                if let Some((text, end)) = &self.lease
                    && instead_of.as_ref() != Some(text)
                {
                    return Answer::Held {
                        text: text.clone(),
                        left: *end - now,
                    };
                }
                if !may_take || (*spare_emptied && self.token.is_none()) {
                    return Answer::Free;
                }
                let token = self.token.unwrap_or(0).max(*least) + 1;
                let text = me.text(token);
                self.token = Some(token);
                self.lease = Some((text.clone(), now + LENGTH));
                Answer::Granted { token, text }
            }
            Ask::Renew { token, text } => match self.token {
                None => Answer::Emptied,
                Some(last) if last != *token => Answer::Another,
                Some(_) => {
                    self.lease = Some((text.clone(), now + LENGTH));
                    Answer::Renewed
                }
            },
        }
    }

    fn empty(&mut self) {
        *self = Self::default();
    }
}

fn holder(name: &str) -> Holder {
    Holder {
        id: name.into(),
        name: name.into(),
        control: format!("udp:{name}:1"),
        ng: String::new(),
        host: "here".into(),
        pid: 1,
        started: 1,
    }
}

/// An agent that asks and is answered at once.
struct Agent {
    me: Holder,
    lease: Lease,
}

impl Agent {
    fn new(name: &str) -> Self {
        Self {
            me: holder(name),
            lease: Lease::new(LENGTH),
        }
    }

    fn round(&mut self, store: &mut Store, now: Duration) -> Change {
        self.round_knowing(store, now, false)
    }

    fn round_knowing(&mut self, store: &mut Store, now: Duration, is_dead: bool) -> Change {
        let answer = store.answer(now, &self.me, &self.lease.ask(now, is_dead));
        self.lease.answered(now, answer)
    }

    fn fail(&mut self, now: Duration) -> Change {
        self.lease.answered(now, Answer::Failed)
    }

    fn is_held(&self, now: Duration) -> bool {
        now < self.lease.standing().until
    }
}

#[test]
fn the_first_is_in_charge_and_the_second_knows_who_is() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    assert_eq!(a.round(&mut store, ms(0)), Change::Granted);
    assert_eq!(b.round(&mut store, ms(1)), Change::None);
    assert_eq!(b.lease.holder().map(|holder| holder.id.as_str()), Some("a"));
    assert!(a.is_held(ms(899)) && !a.is_held(ms(900)) && !b.is_held(ms(1)));
}

#[test]
fn a_lease_that_nobody_renews_is_taken_right_after_it_has_run_out() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    let mut now = ms(10);
    while b.round(&mut store, now) != Change::Granted {
        now += b.lease.pause(now);
    }
    assert!(now >= ms(1000) && now < ms(1025), "{now:?}");
    assert_eq!(b.lease.token(), 2);
    assert_eq!(a.round(&mut store, now), Change::Lost);
}

#[test]
fn who_is_known_to_be_dead_is_not_waited_for() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    b.round(&mut store, ms(1));
    assert_eq!(b.round_knowing(&mut store, ms(2), true), Change::Granted);
}

#[test]
fn an_emptied_store_is_filled_by_the_agent_in_charge() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    b.round(&mut store, ms(100));
    store.empty();
    assert_eq!(b.round(&mut store, ms(150)), Change::None, "nobody gave the lease back");
    assert_eq!(a.round(&mut store, ms(250)), Change::None);
    assert_eq!(a.round(&mut store, ms(251)), Change::WriteAgain(WriteAgain::Emptied));
    assert_eq!(a.lease.token(), 2);
    assert_eq!(b.round(&mut store, ms(260)), Change::None);
}

#[test]
fn after_a_death_of_the_store_its_last_holder_comes_first() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    b.round(&mut store, ms(1));
    for at in [250, 500, 750, 5000] {
        a.fail(ms(at));
        b.fail(ms(at + 1));
    }
    assert!(a.lease.standing().undecided && !a.is_held(ms(5000)));
    assert_eq!(b.round(&mut store, ms(5200)), Change::StoreAnswers);
    assert_eq!(b.round(&mut store, ms(5400)), Change::None, "it is spared for as long as a lease");
    assert_eq!(a.round(&mut store, ms(5450)), Change::StoreAnswers);
    assert!(a.is_held(ms(5500)) && !a.lease.standing().undecided);
}

#[test]
fn who_was_cut_off_has_the_lease_again_once_it_is_given_back() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    b.round(&mut store, ms(1));
    a.fail(ms(250));
    assert_eq!(b.round(&mut store, ms(1100)), Change::Granted);
    assert_eq!(a.round(&mut store, ms(1200)), Change::None);
    assert!(a.lease.standing().undecided);
    store.lease = None;
    assert_eq!(a.round(&mut store, ms(1500)), Change::WriteAgain(WriteAgain::CutOff));
}

#[test]
fn who_was_cut_off_steps_down_when_the_other_keeps_the_lease() {
    let (mut store, mut a, mut b) = (Store::default(), Agent::new("a"), Agent::new("b"));
    a.round(&mut store, ms(0));
    a.fail(ms(250));
    let mut now = ms(1100);
    assert_eq!(b.round(&mut store, now), Change::Granted);
    while a.round(&mut store, now) != Change::Lost {
        now += ms(250);
        b.round(&mut store, now);
    }
    assert!(now >= ms(1100) + UNDECIDED && now < ms(1700) + UNDECIDED, "{now:?}");
}

/// One event.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Ask(usize),
    /// The store receives a request.
    Arrive(usize),
    /// Its answer arrives, or never does.
    Deliver(usize),
    Fail(usize),
    /// Another agent replaces this one; the others may know.
    Die(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..3_usize;
    prop_oneof![
        3 => (1..400_u64).prop_map(Step::Pass),
        4 => agent().prop_map(Step::Ask),
        4 => agent().prop_map(Step::Arrive),
        4 => agent().prop_map(Step::Deliver),
        1 => agent().prop_map(Step::Fail),
        1 => (agent(), any::<bool>()).prop_map(|(agent, known)| Step::Die(agent, known)),
    ]
}

#[derive(Default)]
enum Under {
    #[default]
    Nothing,
    Asked(Duration, Ask),
    Answered(Duration, Answer),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Requests and answers are late, lost, and in any order; the store keeps its data.
    #[test]
    fn at_most_one_is_in_charge_by_the_clock(steps in prop::collection::vec(step(), 1..200)) {
        let (mut store, mut now, mut born) = (Store::default(), Duration::ZERO, 0);
        let mut agents: Vec<(Agent, Under)> = ["a", "b", "c"].map(|name| (Agent::new(name), Under::Nothing)).into();
        let (mut dead, mut tokens): (Vec<String>, Vec<u64>) = Default::default();
        for step in steps {
            match step {
                Step::Pass(time) => now += ms(time),
                Step::Ask(at) => {
                    let (agent, under) = &mut agents[at];
                    let is_dead = agent.lease.holder().is_some_and(|holder| dead.contains(&holder.id));
                    *under = Under::Asked(now, agent.lease.ask(now, is_dead));
                }
                Step::Arrive(at) => {
                    let (agent, under) = &mut agents[at];
                    if let Under::Asked(asked, ask) = std::mem::take(under) {
                        let answer = store.answer(now, &agent.me, &ask);
                        if let Answer::Granted { token, .. } = &answer {
                            tokens.push(*token);
                        }
                        *under = Under::Answered(asked, answer);
                    }
                }
                Step::Deliver(at) => {
                    let (agent, under) = &mut agents[at];
                    if let Under::Answered(asked, answer) = std::mem::take(under) {
                        agent.lease.answered(asked, answer);
                    }
                }
                Step::Fail(at) => {
                    let (agent, under) = &mut agents[at];
                    *under = Under::Nothing;
                    agent.lease.answered(now, Answer::Failed);
                }
                Step::Die(at, is_known) => {
                    if is_known {
                        dead.push(agents[at].0.me.id.clone());
                    }
                    born += 1;
                    agents[at] = (Agent::new(&format!("later-{born}")), Under::Nothing);
                }
            }
            let held: Vec<_> = agents.iter().filter(|(agent, _)| agent.is_held(now)).map(|(agent, _)| &agent.me.id).collect();
            prop_assert!(held.len() <= 1, "{held:?} at {now:?}");
            prop_assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
        }
    }
}
