//! Brings the data plane to what conferences are to be: in rounds of all that have changed, and from scratch after a restart of either side.

use super::feedback::is_of;
use super::state::{State, Timer};
use super::{Conferences, accounting};
use shunt_conference::adaptation::Medium;
use shunt_conference::diff::Step;
use shunt_conference::membership::{Conference, stream_of};
use shunt_conference::planner::{Part, Planner, Steps};
use shunt_conference::repair::Begins;
use shunt_conference::rows::{Data, Key};
use shunt_conference::tables::{Name, Source};
use shunt_conference::trees::Design;
use shunt_net::FiveTuple;
use shunt_plane::{Plane, PlaneError};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// So long a packet may be under way in the data plane at most; a softswitch's takes microseconds.
const DRAIN: Duration = Duration::from_millis(20);
/// Changes that come together are brought in one round.
const TOGETHER: Duration = Duration::from_millis(2);
/// So long a copy of a packet may be under way to the agent.
const COPIES: Duration = Duration::from_millis(3);
/// Until everything is made sure of once more.
const RETRY: Duration = Duration::from_secs(1);
/// Until a conference for which there was no room is tried again.
const NO_ROOM_RETRY: Duration = Duration::from_secs(5);

/// A change ended half way, or the data plane is gone: everything has to be made sure of.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Plane(#[from] PlaneError),
    #[error("{0}")]
    Refused(String),
}

/// For ever: bring what is marked to what it is to be.
pub async fn write(conferences: &Conferences) {
    loop {
        conferences.shared.wake.notified().await;
        tokio::time::sleep(TOGETHER).await;
        if !conferences.is_up() {
            continue;
        }
        if let Err(error) = bring(conferences).await {
            let text = error.to_string();
            let said = conferences.with(|state| state.problem.replace(text.clone()) == Some(text.clone()));
            if !said {
                tracing::error!("conferences: {text}");
            }
            conferences.set_unsure();
            tokio::time::sleep(RETRY).await;
            conferences.shared.wake.notify_one();
        }
    }
}

async fn bring(conferences: &Conferences) -> Result<(), Broken> {
    let plane = &conferences.plane;
    if conferences.take_unsure() {
        if let Err(error) = adopt(conferences, plane).await {
            conferences.set_unsure();
            return Err(error);
        }
        return Ok(());
    }
    loop {
        let names: Vec<Name> = conferences.with(|state| std::mem::take(&mut state.dirty).into_iter().collect());
        if names.is_empty() {
            return Ok(());
        }
        round(conferences, plane, names).await?;
    }
}

/// Take over what the data plane holds, and bring it to the conferences that there are.
async fn adopt(conferences: &Conferences, plane: &Plane) -> Result<(), Broken> {
    let offer = plane.conference_offer()?;
    let routes = plane.routes().await?.map(std::sync::Arc::new);
    if let (Some(sender), None) = (conferences.cpu_port(), &routes) {
        tracing::error!(
            "data_plane.cpu_interface {}: this data plane has no routes of its own, so nothing can be sent by it: leave the key out",
            sender.port.interface()
        );
    }
    let mut rows = plane.conference_rows().await?;
    let owned = plane
        .relay_entries()
        .await?
        .into_iter()
        .filter(|entry| conferences.owns(entry.key().dst));
    rows.extend(owned.map(|entry| {
        let new = FiveTuple::new(entry.new_source(), entry.new_destination());
        (Key::Relay(entry.key()), Data::Relay(new))
    }));
    let found = rows.len();
    let names: Vec<Name> = conferences.with(|state| {
        state.account_lost(&rows.iter().map(|(key, _)| key).collect());
        state.planner = Planner::adopt(offer, None, rows);
        conferences.set_routes(state, routes);
        state.dirty.clear();
        for room in state.rooms.values_mut() {
            room.flows.clear();
            room.caches.values_mut().for_each(shunt_conference::repair::Cache::missed);
        }
        state.rooms.keys().cloned().collect()
    });
    round(conferences, plane, names).await?;
    tokio::time::sleep(DRAIN).await;
    let unwanted = conferences.with(|state| state.planner.unwanted());
    carry_out(conferences, plane, &unwanted).await?;
    conferences.with(|state| {
        state.planner.settled();
        state.problem = None;
    });
    tracing::info!("conferences: {found} rows found, {} of them removed", unwanted.len());
    Ok(())
}

fn copied(state: &State) -> HashSet<Source> {
    state.rooms.values().flat_map(|room| room.caches.keys().cloned()).collect()
}

/// Bring these conferences to what they are to be.
async fn round(conferences: &Conferences, plane: &Plane, names: Vec<Name>) -> Result<(), Broken> {
    let (mut parts, new) = conferences.with(|state| begin(conferences, state, &names));
    let steps: Steps = new.iter().flat_map(|(_, steps)| steps.iter().cloned()).collect();
    let mut results = write_steps(conferences, plane, &steps).await?.into_iter();
    let mut undo = Vec::new();
    for (name, steps) in &new {
        let results: Vec<Result<(), String>> = results.by_ref().take(steps.len()).collect();
        let Some(error) = results.iter().find_map(|result| result.as_ref().err()).cloned() else {
            continue;
        };
        let done: Steps = steps
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok())
            .map(|(step, _)| step.clone())
            .collect();
        if let Some(at) = parts.iter().position(|part| part.name == *name) {
            let part = parts.swap_remove(at);
            conferences.with(|state| {
                undo.extend(state.planner.abandon(part, &done));
                no_room(conferences, state, name, &error);
            });
        }
    }
    carry_out(conferences, plane, &undo).await?;
    let (moves, rest) = conferences.with(|state| finish(state, &mut parts))?;
    let changed = conferences.with(|state| retarget(state, &parts));
    carry_out(conferences, plane, &moves).await?;
    if !changed.is_empty() {
        tokio::time::sleep(COPIES).await;
        conferences.with(|state| retargeted(state, &changed));
    }
    if !rest.is_empty() {
        tokio::time::sleep(DRAIN).await;
        carry_out(conferences, plane, &rest).await?;
    }
    conferences.with(|state| {
        for part in &parts {
            state.planner.release(part);
            brought(conferences, state, &part.name);
        }
    });
    Ok(())
}

/// The caches of streams whose receivers' targets are written now: until that is acknowledged, it is not certain which packet they change with.
fn retarget(state: &mut State, parts: &[Part]) -> Vec<(Source, Name)> {
    let mut changed = Vec::new();
    for part in parts {
        let Some(room) = state.rooms.get_mut(&part.name) else { continue };
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

fn retargeted(state: &mut State, changed: &[(Source, Name)]) {
    for (source, receiver) in changed {
        let room = state.rooms.get_mut(&source.conference);
        if let Some(cache) = room.and_then(|room| room.caches.get_mut(source)) {
            cache.written(receiver);
        }
    }
}

fn begin(conferences: &Conferences, state: &mut State, names: &[Name]) -> (Vec<Part>, Vec<(Name, Steps)>) {
    let copied = copied(state);
    let copied = |source: &Source| copied.contains(source);
    let (mut parts, mut new) = (Vec::new(), Vec::new());
    for name in names {
        if let Some(room) = state.rooms.get_mut(name) {
            conferences.shared.tell_conflicts(room);
        }
        let gone = Conference::new(name.clone());
        let conference = state.rooms.get(name).map_or(&gone, |room| &room.conference);
        match state.planner.begin(conference, &copied) {
            Ok((part, steps)) => {
                parts.push(part);
                new.push((name.clone(), steps));
            }
            Err(error) => no_room(conferences, state, name, &error.to_string()),
        }
    }
    (parts, new)
}

fn finish(state: &mut State, parts: &mut [Part]) -> Result<(Steps, Steps), Broken> {
    let copied = copied(state);
    let copied = |source: &Source| copied.contains(source);
    let State { rooms, planner, .. } = state;
    let gone: HashMap<Name, Conference> = parts
        .iter()
        .filter(|part| !rooms.contains_key(&part.name))
        .map(|part| (part.name.clone(), Conference::new(part.name.clone())))
        .collect();
    let conference = |name: &Name| rooms.get(name).map_or_else(|| &gone[name], |room| &room.conference);
    let made = planner.finish(parts, conference, &copied);
    made.map_err(|(name, error)| Broken::Refused(format!("conference {name}: {error}")))
}

/// Write steps; which of them were refused, and why.
async fn write_steps(conferences: &Conferences, plane: &Plane, steps: &[Step<Key, Data>]) -> Result<Vec<Result<(), String>>, Broken> {
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let ending = conferences.with(|state| state.ending(steps));
    let _rows = if ending.is_empty() {
        None
    } else {
        Some(conferences.rows_end.lock().await)
    };
    let counted = if ending.is_empty() {
        None
    } else {
        accounting::read(plane, &ending).await.ok()
    };
    let ending: HashSet<Key> = ending.into_iter().collect();
    let results = plane.write_conferences(steps).await?;
    conferences.shared.counts.rows_written.inc_by(steps.len() as u64);
    conferences.with(|state| {
        let mut accounted: HashSet<Name> = HashSet::new();
        for (step, _) in steps.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
            if let Step::Delete(key) | Step::Modify(key, _) = step
                && ending.contains(key)
            {
                accounted.extend(state.account(step, counted.as_ref()));
            }
            state.planner.written(step);
        }
        for room in accounted.iter().filter_map(|name| state.rooms.get(name)) {
            conferences.shared.store.put(&room.keep());
        }
    });
    let text = |(step, result): (&Step<Key, Data>, Result<(), shunt_plane::UpdateError>)| {
        result.map_err(|error| {
            let key = match step {
                Step::Add(key, _) | Step::Modify(key, _) | Step::Delete(key) => format!("{key:?}"),
                Step::Drain => String::new(),
            };
            format!("{key}: {error}")
        })
    };
    Ok(steps.iter().zip(results).map(text).collect())
}

async fn carry_out(conferences: &Conferences, plane: &Plane, steps: &[Step<Key, Data>]) -> Result<(), Broken> {
    let results = write_steps(conferences, plane, steps).await?;
    match results.into_iter().find_map(Result::err) {
        Some(error) => Err(Broken::Refused(error)),
        None => Ok(()),
    }
}

/// Say to whom nothing goes because the switch has no way there, and to whom it goes again.
fn tell_unreached(shared: &super::Shared, room: &mut super::state::Room, planner: &Planner) {
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
            tracing::warn!("conference {name}: {} gets no {}: {reason}", place.0, super::leg_name(place.1));
            shared.tell(&name, "no-route", Some(&place.0), Some(place.1.0), |facts| {
                facts.insert("detail".into(), reason.as_str().into());
            });
        }
    }
    for place in room.unreached.keys().filter(|place| !now.contains_key(*place)) {
        if room.members.contains_key(&place.0) {
            shared.tell(&name, "route", Some(&place.0), Some(place.1.0), |_| {});
        }
    }
    room.unreached = now;
}

fn no_room(conferences: &Conferences, state: &mut State, name: &Name, reason: &str) {
    let Some(room) = state.rooms.get_mut(name) else { return };
    if room.problem.as_deref() != Some(reason) {
        tracing::error!("conference {name}: {reason}");
        conferences.shared.tell(name, "no-room", None, None, |facts| {
            facts.insert("detail".into(), reason.into());
        });
    }
    room.problem = Some(reason.to_owned());
    let at = conferences.shared.clock.now() + NO_ROOM_RETRY;
    state.timers.insert((at, Timer::Again(name.clone())));
}

/// The data plane holds a conference as it is to be: who gets video anew needs a key frame, and caches follow.
fn brought(conferences: &Conferences, state: &mut State, name: &Name) {
    let State { rooms, planner, .. } = state;
    let Some(room) = rooms.get_mut(name) else { return };
    room.problem = None;
    tell_unreached(&conferences.shared, room, planner);
    let mut flows: HashSet<(Source, Name)> = HashSet::new();
    for (_, copy) in planner.copies(name).filter(|(key, _)| planner.holds(key)) {
        let Some((medium, _)) = stream_of(&copy.source.stream) else {
            continue;
        };
        let pair = (copy.source.sender.clone(), copy.receiver.clone());
        let paused = room.conference.levels.get(&(pair, medium)) == Some(&0);
        let permitted = super::feedback::permits(&room.conference, &copy.source.sender, &copy.receiver, medium);
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
        state.want_key_frame(&conferences.shared, name, &sender, medium);
    }
}
