//! Tracks what the data plane holds of all conferences, and plans the steps to the wanted state. No I/O.
//!
//! A round includes all changed conferences. First it plans their new rows ([`Planner::begin`]), which do not affect packets yet, so a
//! conference without room stays as it was ([`Planner::abandon`]). Then it plans the rest ([`Planner::finish`]): streams move, and after a
//! pause old rows are removed. A tree that both parts change is written twice: before the pause it still has the members that leave,
//! including those of the round's other conferences.

use crate::allocation::Reserved;
use crate::diff::{Ranked, Step};
use crate::membership::{Conference, TREES};
use crate::migration::{Allocator, Change, How};
use crate::participant::{Leg, Participant};
use crate::rewriting::{Former, Numbering, Place, Rewriting};
use crate::routes::Routes;
use crate::rows::{Data, Key, Resolver, Stream, steps};
use crate::tables::{CopyTo, Limits, Member, Name, Offer, Row, Source, Value, Write};
use crate::trees::{Design, LayoutError};
use shunt_net::Endpoint;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Port of all copies when the data plane's kernel routes each copy. The port then only serves to exclude the sender.
const PORT: u32 = 1;

/// Steps on rows in the data plane's form.
pub type Steps = Vec<Step<Key, Data>>;

pub struct Planner {
    allocator: Allocator,
    pub numbering: Numbering,
    offer: Offer,
    /// Routes of a switch; `None`: the data plane's kernel has the routes.
    routes: Option<Arc<dyn Routes>>,
    /// Number of rows that use a track or a sequence state in the data plane's registers.
    users: HashMap<Key, usize>,
    /// By conference: rows that it does not share.
    plans: HashMap<Name, BTreeMap<Row, Value>>,
    /// Trees; two conferences may share one.
    trees: BTreeMap<u32, Vec<Member>>,
    prunes: BTreeMap<u32, BTreeSet<u32>>,
    inside: HashMap<Key, Data>,
    /// By conference: the keys in `inside` that belong to it, until they are removed.
    owned: HashMap<Name, BTreeSet<Key>>,
    found: Option<Reserved>,
}

/// A conference's part of a round.
pub struct Part {
    pub name: Name,
    change: Option<Change>,
    /// Rows written before streams move. Their participants may have left in the meantime.
    new: Vec<Key>,
    /// Trees and exclusion sets that the change has written since the last check.
    shared: BTreeSet<Row>,
    /// Trees and exclusion sets while streams move: present data, and wanted data.
    moving: Vec<(Key, Option<Data>, Option<Data>)>,
    stays: Option<(HashSet<Source>, HashSet<Name>)>,
}

impl Planner {
    #[must_use]
    pub fn new(offer: Offer, routes: Option<Arc<dyn Routes>>) -> Self {
        Self {
            allocator: Allocator::new(offer.limits, TREES),
            numbering: Numbering::new(offer.rewriting, &offer.limits).with_descriptor_only(offer.registers),
            offer,
            routes,
            users: HashMap::new(),
            plans: HashMap::new(),
            trees: BTreeMap::new(),
            prunes: BTreeMap::new(),
            inside: HashMap::new(),
            owned: HashMap::new(),
            found: None,
        }
    }

    /// Makes a planner before the data plane is known. Until then no payload type is rejected for lack of rewriting.
    #[must_use]
    pub fn empty() -> Self {
        let offer = Offer {
            rewriting: Rewriting::None,
            limits: Limits::default(),
            registers: false,
            routes: false,
            payload_types: usize::MAX,
        };
        Self::new(offer, None)
    }

    /// Starts from the data plane's contents: everything is laid out beside them, and streams and receivers continue with their numbers.
    #[must_use]
    pub fn adopt(offer: Offer, routes: Option<Arc<dyn Routes>>, rows: Vec<(Key, Data)>) -> Self {
        let mut made = Self::new(offer, routes);
        made.numbering.remember(former(&rows));
        let used = rows.iter().flat_map(|(key, data)| match (key, data) {
            (Key::Node(node), _) => vec![Row::Node(*node)],
            (Key::Tree(mgid), _) => vec![Row::Tree(*mgid)],
            (Key::Copy(stream, rid), _) => vec![Row::Copy(*stream, *rid)],
            (Key::Stream(..), Data::Stream(data)) => vec![Row::Copy(data.tree.stream, 0), Row::Tree(data.tree.mgid)],
            _ => Vec::new(),
        });
        let used: Vec<Row> = used.collect();
        made.found = Some(made.allocator.reserve(used.iter()));
        for (key, data) in rows {
            made.written(&Step::Add(key, data));
        }
        made
    }

    /// Returns the routes of a switch.
    #[must_use]
    pub fn routes(&self) -> Option<&Arc<dyn Routes>> {
        self.routes.as_ref()
    }

    pub fn set_routes(&mut self, routes: Option<Arc<dyn Routes>>) {
        self.routes = routes;
    }

    /// Returns whether the data plane is a switch, which keeps numbers in registers. The agent cannot compute those numbers from its
    /// copies.
    #[must_use]
    pub fn keeps_registers(&self) -> bool {
        self.offer.registers
    }

    /// Returns the number of payload types that the data plane rewrites in one copy.
    #[must_use]
    pub fn payload_types(&self) -> usize {
        self.offer.payload_types
    }

    /// Returns why a participant's leg with a known address cannot be reached; `in_tree`: by a copy instead of a relay entry.
    #[must_use]
    pub fn unreached(&self, one: &Participant, leg: &Leg, in_tree: bool) -> Option<String> {
        let (routes, source) = (self.routes.as_ref()?, leg.source?);
        if in_tree {
            hop(routes.as_ref(), one, source.addr).err()
        } else {
            routes.next_hop(source.addr).err()
        }
    }

    /// Returns the design in force.
    #[must_use]
    pub fn design(&self, name: &str) -> Option<Design> {
        self.allocator.design(name)
    }

    /// Returns a conference's streams that use trees.
    pub fn streams(&self, name: &str) -> impl Iterator<Item = &Source> {
        self.allocator.streams(name).map(|(source, _)| source)
    }

    /// Returns a conference's planned copies, with their keys.
    pub fn copies(&self, name: &str) -> impl Iterator<Item = (Key, &CopyTo)> {
        let plan = self.plans.get(name).into_iter().flatten();
        plan.filter_map(|(row, value)| match (row, value) {
            (Row::Copy(stream, rid), Value::Copy(copy)) => Some((Key::Copy(*stream, *rid), copy)),
            _ => None,
        })
    }

    /// Returns a written row.
    #[must_use]
    pub fn row(&self, key: &Key) -> Option<&Data> {
        self.inside.get(key)
    }

    /// Returns the keys of all written rows.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.inside.keys()
    }

    /// Returns a conference's written rows, except shared trees.
    pub fn owned(&self, name: &str) -> impl Iterator<Item = (&Key, &Data)> {
        let keys = self.owned.get(name).into_iter().flatten();
        keys.filter_map(|key| self.inside.get_key_value(key))
    }

    /// Returns whether a row is written.
    #[must_use]
    pub fn holds(&self, key: &Key) -> bool {
        self.inside.contains_key(key)
    }

    /// Returns the number of written rows.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.inside.len()
    }

    /// Starts to bring a conference to its layout. Returns the steps for new rows.
    ///
    /// # Errors
    /// There is no room; nothing has changed.
    pub fn begin(&mut self, conference: &Conference, copied: &dyn Fn(&Source) -> bool) -> Result<(Part, Steps), LayoutError> {
        let name = conference.name.clone();
        let routes = self.routes.clone();
        let layout = conference.layout(|one| routes.as_ref().map_or(Some(PORT), |routes| port(routes.as_ref(), one)));
        let mut part = Part {
            name: name.clone(),
            change: None,
            new: Vec::new(),
            shared: BTreeSet::new(),
            moving: Vec::new(),
            stays: None,
        };
        let same = match self.allocator.layout(&name) {
            Some(before) => *before == layout,
            None => layout.participants.is_empty(),
        };
        if same {
            return Ok((part, Vec::new()));
        }
        let mut change = self.allocator.change(layout, How::default())?;
        // A tree is written once for each half that changes, with the state after the last change.
        let mut new = BTreeMap::new();
        while let Some(write) = self.allocator.next_new(&mut change) {
            if let Write::Add(row, value) | Write::Modify(row, value) = &write {
                new.insert(row.clone(), value.clone());
            }
            self.take(&mut part, write);
        }
        part.change = Some(change);
        let mut steps = Vec::new();
        for (row, value) in new {
            let nexthop = nexthop(routes.as_deref(), conference);
            let mut resolver = resolver(conference, &mut self.numbering, &nexthop, copied);
            // An error for lack of numbers is reported when the rest is planned.
            let Ok(Some((key, data))) = resolver.row(&row, &value) else {
                continue;
            };
            match self.inside.get(&key) {
                Some(there) if *there == data => {}
                Some(_) if matches!(key, Key::Tree(_) | Key::Prune(_)) => steps.push(Step::Modify(key, data)),
                Some(_) => {}
                None => {
                    if !matches!(key, Key::Tree(_) | Key::Prune(_)) {
                        part.new.push(key.clone());
                    }
                    steps.push(Step::Add(key, data));
                }
            }
        }
        steps.sort_by_key(|step| match step {
            Step::Add(key, _) | Step::Modify(key, _) => Some(key.rank()),
            _ => None,
        });
        Ok((part, self.clear_first(steps)))
    }

    /// Adds steps that clear the registers of a track or sequence state before its first row.
    fn clear_first(&self, steps: Steps) -> Steps {
        if !self.offer.registers {
            return steps;
        }
        let (mut made, mut cleared) = (Vec::with_capacity(steps.len()), HashSet::new());
        for step in steps {
            if let Step::Add(_, data) | Step::Modify(_, data) = &step
                && let Some(memory) = data.memory()
                && !self.users.contains_key(&memory)
                && cleared.insert(memory.clone())
            {
                made.push(Step::Add(memory, Data::Cleared));
            }
            made.push(step);
        }
        made
    }

    /// Handles rejected new rows: restores the plan. The returned steps remove the new rows that were written.
    pub fn abandon(&mut self, mut part: Part, done: &[Step<Key, Data>]) -> Steps {
        if let Some(mut change) = part.change.take() {
            self.allocator.abandon(&mut change);
            while let Some(write) = self.allocator.next(&mut change) {
                self.take(&mut part, write);
            }
        }
        let undo = |step: &Step<Key, Data>| match step {
            Step::Add(Key::Tree(mgid), _) | Step::Modify(Key::Tree(mgid), _) => match self.trees.get(mgid) {
                Some(members) => Some(Step::Modify(Key::Tree(*mgid), Data::Tree(members.clone()))),
                None => Some(Step::Delete(Key::Tree(*mgid))),
            },
            Step::Add(Key::Track(_) | Key::SequenceState(_), _) => None,
            Step::Add(key, _) => Some(Step::Delete(key.clone())),
            _ => None,
        };
        done.iter().rev().filter_map(undo).collect()
    }

    /// Plans the rest for all parts of a round: the steps that move streams, and the steps after packets in transit have left.
    ///
    /// # Errors
    /// All numbers of layers, tracks or sequence states are in use; the error names the conference.
    pub fn finish<'a>(
        &mut self,
        parts: &mut [Part],
        conference: impl Fn(&Name) -> &'a Conference,
        copied: &dyn Fn(&Source) -> bool,
    ) -> Result<(Steps, Steps), (Name, LayoutError)> {
        for part in &mut *parts {
            self.share(part);
        }
        let (mut moves, mut rest) = (Vec::new(), Vec::new());
        for part in parts {
            let made = self.finish_part(part, conference(&part.name), copied);
            let (first, last) = made.map_err(|error| (part.name.clone(), error))?;
            moves.extend(first);
            rest.extend(last);
        }
        Ok((moves, rest))
    }

    /// Plans trees and exclusion sets until the pause. A row that two conferences share gets the state of the last one.
    fn share(&mut self, part: &mut Part) {
        if let Some(mut change) = part.change.take() {
            while let Some(write) = self.allocator.next(&mut change)
                && write != Write::Drain
            {
                self.take(part, write);
            }
            part.change = Some(change);
        }
        for row in std::mem::take(&mut part.shared) {
            let Some((key, data)) = self.shared(&row) else { continue };
            let before = self.inside.get(&key).cloned();
            if let Some(data) = &data {
                self.written(&Step::Modify(key.clone(), data.clone()));
            }
            part.moving.push((key, before, data));
        }
    }

    /// Returns the wanted state of a tree or an exclusion set; `None`: the tree has no members any more.
    fn shared(&self, row: &Row) -> Option<(Key, Option<Data>)> {
        match row {
            Row::Tree(mgid) => Some((Key::Tree(*mgid), self.trees.get(mgid).cloned().map(Data::Tree))),
            Row::Prune(xid) => Some((Key::Prune(*xid), self.prunes.get(xid).cloned().map(Data::Prune))),
            _ => None,
        }
    }

    fn finish_part(
        &mut self,
        part: &mut Part,
        conference: &Conference,
        copied: &dyn Fn(&Source) -> bool,
    ) -> Result<(Steps, Steps), LayoutError> {
        if let Some(mut change) = part.change.take() {
            while let Some(write) = self.allocator.next(&mut change) {
                self.take(part, write);
            }
        }
        let none = BTreeMap::new();
        let plan = self.plans.get(&part.name).unwrap_or(&none);
        let nexthop = nexthop(self.routes.as_deref(), conference);
        let mut wanted = resolver(conference, &mut self.numbering, &nexthop, copied).rows(plan)?;
        let owned = self.owned.entry(part.name.clone()).or_default();
        owned.extend(part.new.drain(..).chain(wanted.keys().cloned()));
        let mut written: BTreeMap<Key, Data> = owned
            .iter()
            .filter_map(|key| self.inside.get_key_value(key))
            .map(|(key, data)| (key.clone(), data.clone()))
            .collect();
        for (key, before, data) in std::mem::take(&mut part.moving) {
            wanted.extend(data.map(|data| (key.clone(), data)));
            written.extend(before.map(|before| (key, before)));
        }
        let made = steps(&wanted, &written, self.offer.rewriting == Rewriting::SLr);
        let (moves, mut rest) = split(self.clear_first(tracks_first(made, &written)));
        let late = std::mem::take(&mut part.shared);
        rest.extend(late.iter().filter_map(|row| self.shared(row)).map(|(key, data)| match data {
            Some(data) => Step::Modify(key, data),
            None => Step::Delete(key),
        }));
        // Rows that other rows refer to are deleted after those.
        rest.sort_by_key(|step| std::cmp::Reverse(step.key().map(Ranked::rank)));
        if conference.participants.is_empty() && self.allocator.layout(&part.name).is_none() {
            self.plans.remove(&part.name);
            self.owned.remove(&part.name);
        }
        let sources = self.allocator.streams(&part.name).map(|(source, _)| source.clone()).collect();
        let receivers = conference.participants.iter().map(|one| one.name.clone()).collect();
        part.stays = Some((sources, receivers));
        Ok((moves, rest))
    }

    /// Frees the numbers of a round's rows after their removal.
    pub fn release(&mut self, part: &Part) {
        if let Some((sources, receivers)) = &part.stays {
            self.numbering.forget(&part.name, sources, receivers);
        }
        if let Some(owned) = self.owned.get_mut(&part.name) {
            owned.retain(|key| self.inside.contains_key(key));
        }
    }

    /// Records an executed step.
    pub fn written(&mut self, step: &Step<Key, Data>) {
        match step {
            Step::Add(Key::Track(_) | Key::SequenceState(_), _) | Step::Drain => {}
            Step::Add(key, data) | Step::Modify(key, data) => {
                let before = self.inside.insert(key.clone(), data.clone());
                self.count_user(data.memory(), before.and_then(|before| before.memory()));
            }
            Step::Delete(key) => {
                let before = self.inside.remove(key);
                self.count_user(None, before.and_then(|before| before.memory()));
            }
        }
    }

    /// Updates the user counts when a row's track or sequence state changes.
    fn count_user(&mut self, now: Option<Key>, before: Option<Key>) {
        if let Some(now) = now {
            *self.users.entry(now).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(count) = self.users.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&before);
            }
        }
    }

    /// Returns the deletes of found rows that are not needed, once all conferences are written.
    #[must_use]
    pub fn unwanted(&self) -> Steps {
        let owned: HashSet<&Key> = self.owned.values().flatten().collect();
        let stays = |key: &Key| match key {
            Key::Tree(mgid) => self.trees.contains_key(mgid),
            Key::Prune(_) => true,
            key => owned.contains(key),
        };
        let mut gone: Vec<&Key> = self.inside.keys().filter(|key| !stays(key)).collect();
        gone.sort_by_key(|key| std::cmp::Reverse(key.rank()));
        gone.into_iter().map(|key| Step::Delete(key.clone())).collect()
    }

    /// Records that the unneeded rows are deleted.
    pub fn settled(&mut self) {
        if let Some(found) = self.found.take() {
            self.allocator.give_back(found);
        }
        self.numbering.give_back();
    }

    fn take(&mut self, part: &mut Part, write: Write) {
        let (row, value) = match write {
            Write::Add(row, value) | Write::Modify(row, value) => (row, Some(value)),
            Write::Delete(row) => (row, None),
            Write::Drain => return,
        };
        match (&row, value) {
            (Row::Tree(mgid), value) => {
                match value {
                    Some(Value::Tree(members)) => self.trees.insert(*mgid, members),
                    _ => self.trees.remove(mgid),
                };
                part.shared.insert(row);
            }
            (Row::Prune(xid), value) => {
                let ports = match value {
                    Some(Value::Prune(ports)) => ports,
                    _ => BTreeSet::new(),
                };
                self.prunes.insert(*xid, ports);
                part.shared.insert(row);
            }
            (_, Some(value)) => {
                self.plans.entry(part.name.clone()).or_default().insert(row, value);
            }
            (_, None) => {
                if let Some(plan) = self.plans.get_mut(&part.name) {
                    plan.remove(&row);
                }
            }
        }
    }
}

fn resolver<'a>(
    conference: &'a Conference,
    numbering: &'a mut Numbering,
    nexthop: &'a dyn Fn(&Name, Endpoint) -> Option<u32>,
    copied: &'a dyn Fn(&Source) -> bool,
) -> Resolver<'a> {
    Resolver {
        conference,
        numbering,
        nexthop,
        copied,
    }
}

/// Returns the switch port of a participant: the port of its first reachable leg.
fn port(routes: &dyn Routes, one: &Participant) -> Option<u32> {
    let sources = one.legs.values().filter_map(|leg| leg.source);
    sources
        .filter_map(|source| routes.next_hop(source.addr).ok())
        .map(|hop| hop.port)
        .next()
}

/// Returns the number of the next hop for copies to one of a participant's addresses, or why there is none.
fn hop(routes: &dyn Routes, one: &Participant, addr: IpAddr) -> Result<u32, String> {
    let (hop, port) = (routes.next_hop(addr)?, port(routes, one));
    if Some(hop.port) == port {
        return Ok(hop.number);
    }
    // A node of a tree stands for one participant, for all its media.
    let other = port.map_or_else(|| "none".to_owned(), |port| port.to_string());
    Err(format!(
        "{addr}: the switch sends there by port {}, and other media of {} by port {other}; they have to have one in common",
        hop.port, one.name
    ))
}

fn nexthop<'a>(routes: Option<&'a dyn Routes>, conference: &'a Conference) -> impl Fn(&Name, Endpoint) -> Option<u32> + 'a {
    move |receiver, to| match routes {
        None => Some(0),
        Some(routes) => hop(routes, conference.get(receiver)?, to.addr).ok(),
    }
}

/// Orders tracks before the receivers that use them. Otherwise the data plane would number their packets without the track for a moment.
fn tracks_first(steps: Steps, written: &BTreeMap<Key, Data>) -> Steps {
    let mut first = Vec::new();
    for step in &steps {
        let Step::Modify(key, Data::Stream(new)) = step else { continue };
        if let Some(Data::Stream(old)) = written.get(key)
            && new.track != 0
            && old.track != new.track
        {
            let tracked = Stream { tree: old.tree, ..*new };
            first.push(Step::Modify(key.clone(), Data::Stream(tracked)));
        }
    }
    let layers = steps.iter().take_while(|step| {
        matches!(
            step,
            Step::Add(Key::Node(_) | Key::Layer(..), _) | Step::Modify(Key::Node(_) | Key::Layer(..), _)
        )
    });
    let at = layers.count();
    let mut made = steps;
    made.splice(at..at, first);
    made
}

/// Splits steps into those before the pause and those after it.
fn split(mut steps: Steps) -> (Steps, Steps) {
    let drain = steps.iter().position(|step| *step == Step::Drain);
    let rest = drain.map_or_else(Vec::new, |at| steps.split_off(at));
    (steps, rest.into_iter().filter(|step| *step != Step::Drain).collect())
}

/// Returns the data plane's state of layers and numbers, by stream.
fn former(rows: &[(Key, Data)]) -> HashMap<Place, Former> {
    let mut streams: HashMap<Place, Former> = HashMap::new();
    let (mut by_layers, mut by_stream) = (HashMap::new(), HashMap::new());
    for (key, data) in rows {
        if let (Key::Stream(flow, ssrc), Data::Stream(stream)) = (key, data)
            && stream.layers != 0
        {
            let place = (*flow, *ssrc);
            by_layers.insert(stream.layers, place);
            by_stream.insert(stream.tree.stream, place);
            let made = Former {
                layers: stream.layers,
                track: stream.track,
                ..Former::default()
            };
            streams.insert(place, made);
        }
    }
    for (key, data) in rows {
        match (key, data) {
            (Key::Layer(layers, template), Data::Layer(row)) => {
                if let Some(former) = by_layers.get(layers).and_then(|place| streams.get_mut(place)) {
                    former.rows.insert(*template, *row);
                }
            }
            (Key::Copy(stream, _), Data::Copy(copy)) if copy.sequence_state != 0 => {
                if let Some(former) = by_stream.get(stream).and_then(|place| streams.get_mut(place)) {
                    former.sequence_states.insert(copy.addresses.dst, copy.sequence_state);
                }
            }
            _ => {}
        }
    }
    streams
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptation::Medium;
    use crate::membership::TARGETS;
    use crate::packets::Told;
    use crate::participant::{Leg, Participant};
    use shunt_net::Endpoint;
    use std::net::Ipv4Addr;

    fn softswitch() -> Offer {
        Offer {
            rewriting: Rewriting::SLr,
            limits: Limits::default(),
            registers: false,
            routes: false,
            payload_types: 4,
        }
    }

    fn conference(name: &str, people: u8) -> Conference {
        let mut made = Conference::new(name.into());
        for number in 1..=people {
            let end = |host: u8, port: u16| Endpoint::new(Ipv4Addr::new(10, name.as_bytes()[0], host, number), port);
            let mut one = Participant::new(format!("p{number}").into());
            let mut leg = Leg::new(end(0, 20_000 + u16::from(number) * 2));
            (leg.source, leg.ssrcs, leg.told) = (Some(end(1, 5000)), vec![u32::from(number)], Some(Told::Vp8));
            one.legs.insert((Medium::Video, 0), leg);
            made.join(one).unwrap();
        }
        made.settle();
        made
    }

    /// Applies steps to a data plane model that rejects duplicate keys and changes of missing rows.
    fn apply(rows: &mut HashMap<Key, Data>, planner: &mut Planner, steps: &[Step<Key, Data>]) {
        for step in steps {
            match step {
                Step::Add(key, data) => assert!(rows.insert(key.clone(), data.clone()).is_none(), "{key:?} is there"),
                Step::Modify(key, data) => assert!(
                    rows.insert(key.clone(), data.clone()).is_some() || matches!(key, Key::Prune(_)),
                    "no {key:?}"
                ),
                Step::Delete(key) => assert!(rows.remove(key).is_some(), "no {key:?}"),
                Step::Drain => {}
            }
            planner.written(step);
        }
    }

    fn bring(rows: &mut HashMap<Key, Data>, planner: &mut Planner, conference: &Conference) {
        let (mut part, new) = planner.begin(conference, &|_| false).unwrap();
        apply(rows, planner, &new);
        let (moves, rest) = planner.finish(std::slice::from_mut(&mut part), |_| conference, &|_| false).unwrap();
        apply(rows, planner, &moves);
        apply(rows, planner, &rest);
    }

    /// Returns the receivers of each stream's packets, by layer.
    fn receivers(rows: &HashMap<Key, Data>) -> HashMap<(Key, u32), BTreeSet<Endpoint>> {
        let mut found = HashMap::new();
        for (key, data) in rows {
            let Data::Stream(Stream { tree, .. }) = data else { continue };
            for layer in 0..3 {
                let members = match rows.get(&Key::Tree(tree.mgid + layer.min(tree.trees - 1))) {
                    Some(Data::Tree(members)) => members.as_slice(),
                    _ => &[],
                };
                let rids = members
                    .iter()
                    .filter(|member| member.xid != tree.l1_xid)
                    .map(|member| match &rows[&Key::Node(member.node)] {
                        Data::Node(node) => node.rid,
                        _ => unreachable!(),
                    });
                let copies = rids.filter_map(|rid| match rows.get(&Key::Copy(tree.stream, rid)) {
                    Some(Data::Copy(copy)) => Some(copy.addresses.dst),
                    _ => None,
                });
                let pruned = matches!(rows.get(&Key::Prune(tree.l2_xid)), Some(Data::Prune(ports)) if !ports.is_empty());
                let Key::Stream(flow, _) = key else { unreachable!() };
                found.insert((key.clone(), layer), copies.filter(|to| !(pruned && *to == flow.src)).collect());
            }
        }
        found
    }

    /// Brings several conferences up to date in one round. At any moment a packet goes to all receivers that get it before and after, and
    /// to no receiver that gets it neither before nor after.
    fn bring_gently(rows: &mut HashMap<Key, Data>, planner: &mut Planner, conferences: &[Conference]) {
        let before = receivers(rows);
        let mut seen = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut watched = |rows: &mut HashMap<Key, Data>, planner: &mut Planner, steps: &Steps| {
            for step in steps {
                apply(rows, planner, std::slice::from_ref(step));
                seen.push((step.clone(), receivers(rows)));
            }
        };
        for conference in conferences {
            let (part, new) = planner.begin(conference, &|_| false).unwrap();
            watched(rows, planner, &new);
            parts.push(part);
        }
        let named = |name: &Name| conferences.iter().find(|one| one.name == *name).unwrap();
        let (moves, rest) = planner.finish(&mut parts, named, &|_| false).unwrap();
        watched(rows, planner, &moves);
        watched(rows, planner, &rest);
        parts.iter().for_each(|part| planner.release(part));
        let after = receivers(rows);
        let none = BTreeSet::new();
        for (step, now) in &seen {
            for (place, now) in now {
                let (old, new) = (before.get(place).unwrap_or(&none), after.get(place).unwrap_or(&none));
                let lost: Vec<_> = old.intersection(new).filter(|to| !now.contains(to)).collect();
                assert!(lost.is_empty(), "after {step:?}, {place:?} no longer goes to {lost:?}");
                let astray: Vec<_> = now.iter().filter(|to| !old.contains(to) && !new.contains(to)).collect();
                assert!(astray.is_empty(), "after {step:?}, {place:?} goes to {astray:?}");
            }
        }
    }

    fn limited(conference: &mut Conference) {
        conference.set_level(&"p1".into(), &"p2".into(), Medium::Video, 1).unwrap();
        conference.held.clear();
    }

    #[test]
    fn conferences_share_trees_and_leave_nothing() {
        let (mut planner, mut rows) = (Planner::new(softswitch(), None), HashMap::new());
        let mut both = [conference("a", 3), conference("b", 5)];
        for one in &mut both {
            bring(&mut rows, &mut planner, one);
            limited(one);
            bring(&mut rows, &mut planner, one);
        }
        assert_eq!(planner.design("a"), Some(Design::RaSr));
        for one in &both {
            bring(&mut rows, &mut planner, &Conference::new(one.name.clone()));
        }
        rows.retain(|key, _| !matches!(key, Key::Prune(_)));
        assert!(rows.is_empty(), "{rows:?}");
    }

    #[test]
    fn no_step_of_a_round_takes_a_stream_from_who_keeps_it() {
        let (mut planner, mut rows) = (Planner::new(softswitch(), None), HashMap::new());
        let mut all = [conference("a", 3), conference("b", 3), conference("c", 4)];
        bring_gently(&mut rows, &mut planner, &all);
        for one in &mut all[..2] {
            limited(one);
        }
        bring_gently(&mut rows, &mut planner, &all);
        assert_eq!(planner.design("a"), Some(Design::RaSr));
        for one in &mut all {
            one.set_level(&"p3".into(), &"p2".into(), Medium::Video, 1).unwrap();
            one.held.clear();
        }
        bring_gently(&mut rows, &mut planner, &all);
        let guests = all.each_ref().map(|one| conference(&one.name, 5).leave("p5").unwrap());
        for (one, guest) in all.iter_mut().zip(guests) {
            one.join(guest).unwrap();
            one.settle();
        }
        bring_gently(&mut rows, &mut planner, &all);
        for one in &mut all {
            one.leave("p5").unwrap();
            one.set_level(&"p1".into(), &"p2".into(), Medium::Video, TARGETS).unwrap();
            one.set_level(&"p3".into(), &"p2".into(), Medium::Video, TARGETS).unwrap();
            one.held.clear();
            one.settle();
        }
        bring_gently(&mut rows, &mut planner, &all);
    }

    #[test]
    fn rows_are_a_conference_s_until_they_are_out() {
        let (mut planner, mut rows) = (Planner::new(softswitch(), None), HashMap::new());
        let mut one = conference("a", 4);
        bring(&mut rows, &mut planner, &one);
        one.leave("p4").unwrap();
        one.settle();
        let (mut part, new) = planner.begin(&one, &|_| false).unwrap();
        apply(&mut rows, &mut planner, &new);
        let (moves, rest) = planner.finish(std::slice::from_mut(&mut part), |_| &one, &|_| false).unwrap();
        apply(&mut rows, &mut planner, &moves);
        let going: Vec<&Key> = rest
            .iter()
            .filter_map(|step| if let Step::Delete(key) = step { Some(key) } else { None })
            .collect();
        let copies = going.iter().filter(|key| matches!(key, Key::Copy(..))).count();
        let owned = |planner: &Planner| planner.owned("a").filter(|(key, _)| going.contains(key)).count();
        assert!(
            copies > 0 && owned(&planner) >= copies,
            "{copies} copies go, {} are owned",
            owned(&planner)
        );
        apply(&mut rows, &mut planner, &rest);
        planner.release(&part);
        assert_eq!(owned(&planner), 0);
        assert_eq!(planner.owned["a"].len(), planner.owned("a").count());
    }

    #[test]
    fn new_rows_that_were_refused_are_taken_out_and_all_is_as_it_was() {
        let (mut planner, mut rows) = (Planner::new(softswitch(), None), HashMap::new());
        let mut one = conference("a", 3);
        bring(&mut rows, &mut planner, &one);
        let before = rows.clone();
        limited(&mut one);
        let (part, new) = planner.begin(&one, &|_| false).unwrap();
        let done = &new[..new.len() / 2];
        apply(&mut rows, &mut planner, done);
        let undo = planner.abandon(part, done);
        apply(&mut rows, &mut planner, &undo);
        assert_eq!(rows, before);
        bring(&mut rows, &mut planner, &one);
    }

    #[test]
    fn what_was_found_is_taken_over_with_its_numbers_and_the_rest_goes() {
        let (mut planner, mut rows) = (Planner::new(softswitch(), None), HashMap::new());
        let mut one = conference("a", 3);
        limited(&mut one);
        bring(&mut rows, &mut planner, &one);
        let sequence_states = |rows: &HashMap<Key, Data>| -> BTreeSet<(Endpoint, u32)> {
            let copies = rows.values().filter_map(|data| match data {
                Data::Copy(copy) if copy.sequence_state != 0 => Some((copy.addresses.dst, copy.sequence_state)),
                _ => None,
            });
            copies.collect()
        };
        let (count, before) = (rows.len(), sequence_states(&rows));
        assert!(!before.is_empty());
        let found = rows.iter().filter(|(key, _)| !matches!(key, Key::Prune(_)));
        let mut next = Planner::adopt(softswitch(), None, found.map(|(key, data)| (key.clone(), data.clone())).collect());
        bring(&mut rows, &mut next, &one);
        let unwanted = next.unwanted();
        apply(&mut rows, &mut next, &unwanted);
        next.settled();
        assert_eq!((rows.len(), sequence_states(&rows)), (count, before));
    }
}
