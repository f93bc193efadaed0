//! What keeps a media line on its relay: a set of holds, each with its holder.
//!
//! Two recordings of one call are two holds. The line may leave the relay when the set is empty, so the end of one of them changes nothing.

use crate::ids::Side;
use crate::journal::Text;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::collections::BTreeSet;

/// Recordings of a line that are remembered after their end: the latest.
const MOST_PAST: usize = 16;

/// The one that a hold belongs to. Only a command that names the same holder ends it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// The whole call.
    Call,
    /// One party's media, which a command for rtpproxy names by its tags.
    Side(Side),
    /// One party's media, as a command for rtpengine selects it.
    Party(Text),
    /// The media from one party to another, as a command for rtpengine selects it.
    Flow(Text),
    /// A subscription at rtpengine, by its tag; empty while the request has no reply.
    Subscription(Text),
}

/// Work of the relay on a line's media, and the party that requested it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub reason: Reason,
    /// The command or option that began it: `C`, `start recording`, `record-call`. Empty: no agent saw it.
    pub command: Box<str>,
    pub holder: Holder,
    /// Where copies go, as far as commands say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Endpoint>,
}

impl Hold {
    pub(crate) fn new(reason: Reason, command: &str, holder: Holder) -> Self {
        Self {
            reason,
            command: command.into(),
            holder,
            to: Vec::new(),
        }
    }

    /// Whether somebody else gets the media.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        matches!(
            self.reason,
            Reason::Recording | Reason::Copy | Reason::Forwarding | Reason::Subscription
        )
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.reason, &self.command, &self.holder) == (other.reason, &other.command, &other.holder)
    }
}

/// How many recorders get the media: subscriptions, addresses of copies, and recordings of the relay itself.
#[must_use]
pub fn recorders<'a>(holds: impl IntoIterator<Item = &'a Hold>) -> usize {
    let recorder = |hold: &Hold| match (&hold.holder, hold.to.first()) {
        (Holder::Subscription(tag), _) => (String::new(), Some(tag.clone()), None),
        (_, to) => (hold.command.to_string(), None, to.map(|end| end.addr)),
    };
    let recordings = holds.into_iter().filter(|hold| hold.is_recording());
    recordings.map(recorder).collect::<BTreeSet<_>>().len()
}

/// A hold of a line, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) hold: Hold,
    /// Its command has no reply yet: a refusal takes it back.
    begun: bool,
    /// When it ends by itself.
    pub(crate) until: Option<Time>,
}

/// The holds of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// By reason.
    held: Vec<Held>,
    /// Recordings that have ended.
    past: Vec<Hold>,
}

impl Holds {
    pub(crate) fn restored(held: impl IntoIterator<Item = (Hold, Option<Time>)>, past: Vec<Hold>) -> Self {
        let held = held.into_iter().map(|(hold, until)| Held { hold, begun: false, until });
        Self {
            held: held.collect(),
            past,
        }
    }

    /// The same holds for another line of the call.
    pub(crate) fn join(&mut self, others: &Self) {
        for held in &others.held {
            self.confirm(held.hold.clone(), held.until);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Why the line stays on the relay.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.held.first().map(|held| held.hold.reason)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }

    /// Recordings that have ended.
    pub(crate) fn past(&self) -> &[Hold] {
        &self.past
    }

    fn find(&mut self, hold: &Hold) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.hold.is_same(hold))
    }

    /// Adds a hold, unless its holder has it already. Returns whether it is new.
    fn add(&mut self, hold: Hold) -> bool {
        if self.find(&hold).is_some() {
            return false;
        }
        let at = self.held.partition_point(|held| held.hold.reason <= hold.reason);
        let (begun, until) = (false, None);
        self.held.insert(at, Held { hold, begun, until });
        true
    }

    /// Adds a hold for a command that the relay may refuse.
    pub(crate) fn begin(&mut self, hold: Hold) {
        if self.add(hold.clone())
            && let Some(held) = self.find(&hold)
        {
            held.begun = true;
        }
    }

    /// The relay has carried out the command, or may have: the hold stays. `until`: when it ends by itself.
    pub(crate) fn confirm(&mut self, hold: Hold, until: Option<Time>) {
        self.add(hold.clone());
        if let Some(held) = self.find(&hold) {
            (held.begun, held.until) = (false, until);
        }
    }

    /// The copies of a hold go to these places from now on.
    pub(crate) fn aim(&mut self, hold: &Hold, to: Vec<Endpoint>) {
        if let Some(held) = self.find(hold) {
            held.hold.to = to;
        }
    }

    /// Whether rtpproxy records a party's media. It has one record of a stream: until N ends that, another R or C gets 0 and does nothing.
    pub(crate) fn has_record(&self, side: Side) -> bool {
        self.held
            .iter()
            .any(|held| !held.begun && held.hold.holder == Holder::Side(side) && held.hold.is_recording())
    }

    /// The relay has refused the command: a hold that the command began is none. One that was there before stays.
    pub(crate) fn refuse(&mut self, hold: &Hold) {
        self.held.retain(|held| !(held.begun && held.hold.is_same(hold)));
    }

    /// Ends those holds that fit.
    pub(crate) fn end(&mut self, fits: impl Fn(&Hold) -> bool) {
        let (ended, left) = std::mem::take(&mut self.held).into_iter().partition(|held| fits(&held.hold));
        self.held = left;
        self.remember(ended);
    }

    /// Ends those whose time is over. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let is_over = |held: &Held| held.until.is_some_and(|until| until <= now);
        let (ended, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(is_over);
        self.held = left;
        let any = !ended.is_empty();
        self.remember(ended);
        any
    }

    /// When the next one ends by itself.
    pub(crate) fn due(&self) -> Option<Time> {
        self.held.iter().filter_map(|held| held.until).min()
    }

    fn remember(&mut self, ended: Vec<Held>) {
        for Held { hold, .. } in ended {
            if hold.is_recording() && !self.past.contains(&hold) {
                if self.past.len() >= MOST_PAST {
                    self.past.remove(0);
                }
                self.past.push(hold);
            }
        }
    }
}
