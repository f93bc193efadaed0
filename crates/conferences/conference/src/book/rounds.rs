//! The way of the data plane's rows to what conferences are: in rounds of all that have changed, and from scratch after a restart of either side.
//!
//! The writer asks [`Book::next_rows`] again and again, and says what has come of it ([`Book::adopt`], [`Book::written`], [`Book::broken`]).

use super::feedback::{is_of, permits};
use super::{Book, Level, Readings, Room, Timer, Turn, leg_name};
use crate::adaptation::Medium;
use crate::diff::Step;
use crate::membership::{Conference, stream_of};
use crate::planner::{Part, Planner, Steps};
use crate::repair::{Begins, Cache};
use crate::routes::Routes;
use crate::rows::{Data, Key};
use crate::tables::{Name, Offer, Source};
use crate::trees::Design;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// So long a packet may be under way in the data plane at most; a softswitch's takes microseconds.
const DRAIN: Duration = Duration::from_millis(20);
/// So long a copy of a packet may be under way to the agent.
const COPIES: Duration = Duration::from_millis(3);
/// Until everything is made sure of once more.
const RETRY: Duration = Duration::from_secs(1);
/// Until a conference for which there was no room is tried again.
const NO_ROOM_RETRY: Duration = Duration::from_secs(5);

/// What the writer does next.
#[derive(Debug)]
pub enum Next {
    /// Nothing, until a [`super::Decision::Write`].
    Idle,
    /// Read what the data plane holds, for [`Book::adopt`].
    Adopt,
    /// Wait: packets that are under way arrive.
    Wait(Duration),
    /// Read the counters of the rows that end, write the steps in this order, and say what has come of it to [`Book::written`].
    Write { steps: Steps, ending: Vec<Key> },
}

/// Conferences on their way into the data plane.
pub(super) struct Round {
    parts: Vec<Part>,
    /// Steps that are written now.
    steps: Steps,
    stage: Stage,
}

enum Stage {
    /// Rows that change nothing for any packet are written, by conference.
    New(Vec<(Name, Steps)>),
    /// Those of conferences without room are taken out again.
    Undo,
    /// Streams move. Then come the caches whose receivers change targets, and the rows that go.
    Move { changed: Vec<(Source, Name)>, rest: Steps },
    /// Copies of packets from before have come.
    Moved { changed: Vec<(Source, Name)>, rest: Steps },
    /// Packets from before have left.
    Drained { rest: Steps },
    /// What nobody needs any more goes.
    Rest,
}

/// The data plane has been read, and what it held that nobody needs goes once all conferences are in it.
pub(super) struct Found {
    rows: usize,
    removed: Option<usize>,
    steps: Steps,
}

impl Book {
    /// The data plane can be used, or no longer and why.
    pub fn set_data_plane(&mut self, turn: &mut Turn, down: Option<&str>) {
        (self.up, self.unsure) = (down.is_none(), true);
        (self.round, self.found, self.pause) = (None, None, None);
        if let Some(reason) = down {
            self.problem = Some(format!("the data plane is not there: {reason}"));
        }
        turn.wake();
    }

    /// The routes of a switch are others, and copies follow.
    pub fn set_routes(&mut self, turn: &mut Turn, routes: Option<Arc<dyn Routes>>) {
        self.planner.set_routes(routes);
        self.rooms.keys().for_each(|name| turn.touch(name));
    }

    /// Whether the data plane has routes of its own, and whether somebody is not reached by them.
    #[must_use]
    pub fn is_cut_off(&self) -> (bool, bool) {
        let cut_off = self.rooms.values().any(|room| !room.unreached.is_empty());
        (self.planner.routes().is_some(), cut_off)
    }

    /// Take over what the data plane holds, and bring it to the conferences that there are.
    pub fn adopt(&mut self, turn: &mut Turn, offer: Offer, routes: Option<Arc<dyn Routes>>, rows: Vec<(Key, Data)>) {
        let count = rows.len();
        self.account_lost(&rows.iter().map(|(key, _)| key).collect());
        self.planner = Planner::adopt(offer, routes, rows);
        self.dirty.clear();
        for room in self.rooms.values_mut() {
            room.flows.clear();
            room.caches.values_mut().for_each(Cache::missed);
        }
        let names = self.rooms.keys().cloned().collect();
        self.found = Some(Found {
            rows: count,
            removed: None,
            steps: Vec::new(),
        });
        self.begin(turn, names);
    }

    /// What was to be written or read could not be: everything is made sure of, from the start.
    pub fn broken(&mut self, turn: &mut Turn, reason: &str) {
        if self.problem.as_deref() != Some(reason) {
            turn.log(Level::Error, format!("conferences: {reason}"));
        }
        self.problem = Some(reason.to_owned());
        (self.round, self.found, self.unsure) = (None, None, true);
        self.pause = Some(RETRY);
    }

    /// What the writer does next.
    pub fn next_rows(&mut self, turn: &mut Turn) -> Next {
        loop {
            if !self.is_up() {
                return Next::Idle;
            }
            if let Some(pause) = self.pause.take() {
                return Next::Wait(pause);
            }
            if let Some(round) = &self.round {
                if !round.steps.is_empty() {
                    let steps = round.steps.clone();
                    return Next::Write {
                        ending: self.ending(&steps),
                        steps,
                    };
                }
                if let Some(wait) = self.advance(turn) {
                    return Next::Wait(wait);
                }
            } else if let Some(found) = &mut self.found {
                match found.removed {
                    None => {
                        found.steps = self.planner.unwanted();
                        found.removed = Some(found.steps.len());
                        return Next::Wait(DRAIN);
                    }
                    Some(_) if !found.steps.is_empty() => {
                        let steps = found.steps.clone();
                        return Next::Write {
                            ending: self.ending(&steps),
                            steps,
                        };
                    }
                    Some(removed) => {
                        self.planner.settled();
                        self.problem = None;
                        // There may be room now for conferences that found none beside their former rows.
                        let without = self.rooms.iter().filter(|(_, room)| room.problem.is_some());
                        self.dirty.extend(without.map(|(name, _)| name.clone()));
                        let text = format!("conferences: {} rows found, {removed} of them removed", found.rows);
                        turn.log(Level::Info, text);
                        self.found = None;
                    }
                }
            } else if std::mem::take(&mut self.unsure) {
                return Next::Adopt;
            } else if self.dirty.is_empty() {
                return Next::Idle;
            } else {
                let names = std::mem::take(&mut self.dirty).into_iter().collect();
                self.begin(turn, names);
            }
        }
    }

    /// The steps that were to be written are, or were refused: why. `read`: the counters of the rows that have ended.
    pub fn written(&mut self, turn: &mut Turn, results: Vec<Result<(), String>>, read: Option<&Readings>) {
        let steps = match (&mut self.round, &mut self.found) {
            (Some(round), _) => std::mem::take(&mut round.steps),
            (None, Some(found)) => std::mem::take(&mut found.steps),
            (None, None) => return,
        };
        let ending: HashSet<Key> = self.ending(&steps).into_iter().collect();
        for (step, _) in steps.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
            if let Step::Delete(key) | Step::Modify(key, _) = step
                && ending.contains(key)
            {
                self.account(step, read).iter().for_each(|name| turn.keep(name));
            }
            self.planner.written(step);
        }
        if let Some(Round {
            stage: Stage::New(new), ..
        }) = &mut self.round
        {
            let new = std::mem::take(new);
            self.refuse(turn, &new, &results);
        } else if let Some((step, error)) = steps
            .iter()
            .zip(&results)
            .find_map(|(step, result)| Some((step, result.as_ref().err()?)))
        {
            let reason = refused(step, error);
            self.broken(turn, &reason);
        }
    }

    /// The new rows of these conferences.
    fn begin(&mut self, turn: &mut Turn, names: Vec<Name>) {
        let copied = self.copied_streams();
        let copied = |source: &Source| copied.contains(source);
        let (mut parts, mut new) = (Vec::new(), Vec::new());
        for name in names {
            if let Some(room) = self.rooms.get_mut(&name) {
                room.tell_conflicts(turn);
            }
            let gone = Conference::new(name.clone());
            let conference = self.rooms.get(&name).map_or(&gone, |room| &room.conference);
            match self.planner.begin(conference, &copied) {
                Ok((part, steps)) => {
                    parts.push(part);
                    new.push((name, steps));
                }
                Err(error) => self.no_room(turn, &name, &error.to_string()),
            }
        }
        self.round = Some(Round {
            parts,
            steps: new.iter().flat_map(|(_, steps)| steps.iter().cloned()).collect(),
            stage: Stage::New(new),
        });
    }

    /// Conferences of whose new rows one was refused stay as they were.
    fn refuse(&mut self, turn: &mut Turn, new: &[(Name, Steps)], results: &[Result<(), String>]) {
        let mut results = results.iter();
        let mut undo = Vec::new();
        for (name, steps) in new {
            let made: Vec<_> = steps.iter().zip(results.by_ref()).collect();
            let Some(error) = made.iter().find_map(|(step, result)| Some(refused(step, result.as_ref().err()?))) else {
                continue;
            };
            let done: Steps = made
                .iter()
                .filter(|(_, result)| result.is_ok())
                .map(|(step, _)| (*step).clone())
                .collect();
            let part = self.round.as_mut().and_then(|round| {
                let at = round.parts.iter().position(|part| part.name == *name)?;
                Some(round.parts.swap_remove(at))
            });
            if let Some(part) = part {
                undo.extend(self.planner.abandon(part, &done));
                self.no_room(turn, name, &error);
            }
        }
        if let Some(round) = &mut self.round {
            (round.steps, round.stage) = (undo, Stage::Undo);
        }
    }

    /// All steps of a stage are written: the next one begins, after a pause or at once.
    fn advance(&mut self, turn: &mut Turn) -> Option<Duration> {
        let mut round = self.round.take()?;
        let mut wait = None;
        (round.stage, round.steps) = match round.stage {
            Stage::New(_) | Stage::Undo => match self.finish(&mut round.parts) {
                Ok((moves, rest)) => {
                    let changed = self.retarget(&round.parts);
                    (Stage::Move { changed, rest }, moves)
                }
                Err(reason) => {
                    self.broken(turn, &reason);
                    return None;
                }
            },
            Stage::Move { changed, rest } => {
                wait = (!changed.is_empty()).then_some(COPIES);
                (Stage::Moved { changed, rest }, Vec::new())
            }
            Stage::Moved { changed, rest } => {
                self.retargeted(&changed);
                wait = (!rest.is_empty()).then_some(DRAIN);
                (Stage::Drained { rest }, Vec::new())
            }
            Stage::Drained { rest } => (Stage::Rest, rest),
            Stage::Rest => {
                for part in &round.parts {
                    self.planner.release(part);
                    brought(self, turn, &part.name);
                }
                return None;
            }
        };
        self.round = Some(round);
        wait
    }

    fn copied_streams(&self) -> HashSet<Source> {
        self.rooms.values().flat_map(|room| room.caches.keys().cloned()).collect()
    }

    fn finish(&mut self, parts: &mut [Part]) -> Result<(Steps, Steps), String> {
        let copied = self.copied_streams();
        let copied = |source: &Source| copied.contains(source);
        let Self { rooms, planner, .. } = self;
        let gone: HashMap<Name, Conference> = parts
            .iter()
            .filter(|part| !rooms.contains_key(&part.name))
            .map(|part| (part.name.clone(), Conference::new(part.name.clone())))
            .collect();
        let conference = |name: &Name| rooms.get(name).map_or_else(|| &gone[name], |room| &room.conference);
        let made = planner.finish(parts, conference, &copied);
        made.map_err(|(name, error)| format!("conference {name}: {error}"))
    }

    /// The caches of streams whose receivers' targets are written now: until that is acknowledged, it is not certain which packet they change with.
    fn retarget(&mut self, parts: &[Part]) -> Vec<(Source, Name)> {
        let mut changed = Vec::new();
        for part in parts {
            let Some(room) = self.rooms.get_mut(&part.name) else { continue };
            for (pair, medium, from, to) in std::mem::take(&mut room.retargets) {
                for (source, cache) in &mut room.caches {
                    if source.sender == pair.0 && is_of(source, medium) {
                        cache.retarget(&pair.1, from, to);
                        changed.push((source.clone(), pair.1.clone()));
                    }
                }
            }
        }
        changed
    }

    fn retargeted(&mut self, changed: &[(Source, Name)]) {
        for (source, receiver) in changed {
            let room = self.rooms.get_mut(&source.conference);
            if let Some(cache) = room.and_then(|room| room.caches.get_mut(source)) {
                cache.written(receiver);
            }
        }
    }

    fn no_room(&mut self, turn: &mut Turn, name: &Name, reason: &str) {
        let Some(room) = self.rooms.get_mut(name) else { return };
        if room.problem.as_deref() != Some(reason) {
            turn.log(Level::Error, format!("conference {name}: {reason}"));
            turn.tell(name, "no-room", None, None, |facts| {
                facts.insert("detail".into(), reason.into());
            });
        }
        room.problem = Some(reason.to_owned());
        turn.later(turn.now + NO_ROOM_RETRY, Timer::Again(name.clone()));
    }
}

fn refused(step: &Step<Key, Data>, error: &str) -> String {
    match step.key() {
        Some(key) => format!("{key:?}: {error}"),
        None => error.to_owned(),
    }
}

/// Say to whom nothing goes because the switch has no way there, and to whom it goes again.
fn tell_unreached(turn: &mut Turn, room: &mut Room, planner: &Planner) {
    let name = room.conference.name.clone();
    let in_tree = planner.design(&name) != Some(Design::TwoParty);
    let mut now = BTreeMap::new();
    for one in &room.conference.participants {
        for (key, leg) in &one.legs {
            now.extend(
                planner
                    .unreached(one, leg, in_tree)
                    .map(|reason| ((one.name.clone(), *key), reason)),
            );
        }
    }
    for (place, reason) in &now {
        if room.unreached.get(place) != Some(reason) {
            turn.log(
                Level::Warn,
                format!("conference {name}: {} gets no {}: {reason}", place.0, leg_name(place.1)),
            );
            turn.tell(&name, "no-route", Some(&place.0), Some(place.1.0), |facts| {
                facts.insert("detail".into(), reason.as_str().into());
            });
        }
    }
    for place in room.unreached.keys().filter(|place| !now.contains_key(*place)) {
        if room.members.contains_key(&place.0) {
            turn.tell(&name, "route", Some(&place.0), Some(place.1.0), |_| {});
        }
    }
    room.unreached = now;
}

/// The data plane holds a conference as it is to be: who gets video anew needs a key frame, and caches follow.
fn brought(book: &mut Book, turn: &mut Turn, name: &Name) {
    let Book { rooms, planner, .. } = book;
    let Some(room) = rooms.get_mut(name) else { return };
    room.problem = None;
    tell_unreached(turn, room, planner);
    let mut flows: HashSet<(Source, Name)> = HashSet::new();
    for (_, copy) in planner.copies(name).filter(|(key, _)| planner.holds(key)) {
        let Some((medium, _)) = stream_of(&copy.source.stream) else {
            continue;
        };
        let pair = (copy.source.sender.clone(), copy.receiver.clone());
        let paused = room.conference.levels.get(&(pair, medium)) == Some(&0);
        let permitted = permits(&room.conference, &copy.source.sender, &copy.receiver, medium);
        if medium != Medium::Audio && permitted && !paused {
            flows.insert((copy.source.clone(), copy.receiver.clone()));
        }
    }
    for (source, cache) in &mut room.caches {
        for (_, receiver) in flows.iter().filter(|(flow, _)| flow == source) {
            cache.begin(receiver, Begins::Now);
        }
        for (_, receiver) in room.flows.iter().filter(|flow| flow.0 == *source && !flows.contains(*flow)) {
            cache.pause(receiver);
        }
    }
    let mut anew: HashSet<(Name, Medium)> = HashSet::new();
    for (source, _) in flows.difference(&room.flows) {
        if let Some((medium, _)) = stream_of(&source.stream) {
            anew.insert((source.sender.clone(), medium));
        }
    }
    // Layers that nothing is known of go to everybody until a structure has come.
    for source in planner.streams(name).filter(|source| planner.numbering.awaits_structure(source)) {
        if let Some((medium, _)) = stream_of(&source.stream)
            && room.conference.is_tracked(&source.sender, medium)
        {
            anew.insert((source.sender.clone(), medium));
        }
    }
    room.flows = flows;
    for (sender, medium) in anew {
        book.want_key_frame(turn, name, &sender, medium);
    }
}
