//! Brings the data plane's rows up to date: in rounds of all changed conferences, and from scratch after a restart of either side.
//!
//! The writer calls [`Book::next_rows`] repeatedly and reports the results ([`Book::adopt`], [`Book::written`], [`Book::broken`]).

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

/// Longest time that a packet is in transit through the data plane. A softswitch needs microseconds.
const DRAIN: Duration = Duration::from_millis(20);
/// Longest time that a copy of a packet is in transit to the agent.
const COPIES: Duration = Duration::from_millis(3);
/// Delay before all rows are verified again.
const RETRY: Duration = Duration::from_secs(1);
/// Delay before a conference that found no room is tried again.
const NO_ROOM_RETRY: Duration = Duration::from_secs(5);

/// The writer's next action.
#[derive(Debug)]
pub enum Next {
    /// Nothing, until a [`super::Decision::Write`].
    Idle,
    /// Read the data plane's contents, for [`Book::adopt`].
    Adopt,
    /// Wait until packets in transit have arrived.
    Wait(Duration),
    /// Read the counters of the rows to be removed, execute the steps in this order, and pass the results to [`Book::written`].
    Write { steps: Steps, ending: Vec<Key> },
}

/// Changed conferences that are being written.
pub(super) struct Round {
    parts: Vec<Part>,
    /// Steps that are being written.
    steps: Steps,
    stage: Stage,
}

enum Stage {
    /// Writes of rows that do not affect packets yet, by conference.
    New(Vec<(Name, Steps)>),
    /// Removes the new rows of conferences without room.
    Undo,
    /// Moves streams. Then follow the caches whose receivers change targets, and the deletes.
    Move { changed: Vec<(Source, Name)>, rest: Steps },
    /// Copies of packets from before the move have arrived.
    Moved { changed: Vec<(Source, Name)>, rest: Steps },
    /// Packets from before the move have left the data plane.
    Drained { rest: Steps },
    /// Removes rows that are no longer needed.
    Rest,
}

/// Contents of the data plane; unneeded rows are removed once all conferences are written.
pub(super) struct Found {
    rows: usize,
    removed: Option<usize>,
    steps: Steps,
}

impl Book {
    /// Records that the data plane is usable, or why it is not.
    pub fn set_data_plane(&mut self, turn: &mut Turn, down: Option<&str>) {
        (self.up, self.unsure) = (down.is_none(), true);
        (self.round, self.found, self.pause) = (None, None, None);
        if let Some(reason) = down {
            self.problem = Some(format!("the data plane is not there: {reason}"));
        }
        turn.wake();
    }

    /// Sets new routes of a switch; copies follow them.
    pub fn set_routes(&mut self, turn: &mut Turn, routes: Option<Arc<dyn Routes>>) {
        self.planner.set_routes(routes);
        self.rooms.keys().for_each(|name| turn.touch(name));
    }

    /// Returns whether the data plane has its own routes, and whether they miss a participant.
    #[must_use]
    pub fn is_cut_off(&self) -> (bool, bool) {
        let cut_off = self.rooms.values().any(|room| !room.unreached.is_empty());
        (self.planner.routes().is_some(), cut_off)
    }

    /// Adopts the data plane's contents and plans the steps from there to the present conferences.
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

    /// Handles a failed write or read: all rows are verified from the start.
    pub fn broken(&mut self, turn: &mut Turn, reason: &str) {
        if self.problem.as_deref() != Some(reason) {
            turn.log(Level::Error, format!("conferences: {reason}"));
        }
        self.problem = Some(reason.to_owned());
        (self.round, self.found, self.unsure) = (None, None, true);
        self.pause = Some(RETRY);
    }

    /// Returns the writer's next action.
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
                        // Conferences that found no room beside their former rows may find it now.
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

    /// Records the results of steps: success, or why the step was rejected. `read`: the counters of the removed rows.
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

    /// Plans the new rows of these conferences.
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

    /// Leaves conferences unchanged if any of their new rows was rejected.
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

    /// Starts the next stage after all steps of a stage are written, at once or after the returned pause.
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

    /// Updates the caches of streams whose receivers' targets are being written. Until the acknowledgement it is unknown with which packet
    /// each target changes.
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

/// Logs legs that a switch cannot reach, and legs that it reaches again.
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

/// Runs when the data plane is up to date for a conference: new receivers of video need a key frame, and caches follow.
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
    // Packets of unknown layers go to all receivers until a structure arrives.
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
