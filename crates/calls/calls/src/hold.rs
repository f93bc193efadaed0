//! What keeps a media line on its relay: a set of holds, each with its holder.
//!
//! Two recordings of one call are two holds. The line may leave the relay only when the set is empty, so the end of one recording does not
//! end the other.

use crate::ids::Side;
use crate::journal::Text;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::collections::BTreeSet;

/// Number of ended recordings that a line remembers, the latest ones.
const MOST_PAST: usize = 16;

/// The owner of a hold. Only a command that names the same holder ends the hold.
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
    /// The command or option that began it: `C`, `start recording`, `record-call`. Empty: no agent saw the command.
    pub command: Box<str>,
    pub holder: Holder,
    /// Destinations of copies, if commands name them.
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

    /// Returns whether a third party gets the media.
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

/// Returns how many recorders get the media: subscriptions, addresses of copies, and recordings by the relay itself.
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
    /// The command has no reply yet: a rejection removes the hold.
    begun: bool,
    /// When the hold expires.
    pub(crate) until: Option<Time>,
}

/// The holds of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// Sorted by reason.
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

    /// Adds the holds of another line of the call.
    pub(crate) fn join(&mut self, others: &Self) {
        for held in &others.held {
            self.confirm(held.hold.clone(), held.until);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns why the line stays on the relay.
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

    /// Adds a hold, unless its holder already has it. Returns whether it is new.
    fn add(&mut self, hold: Hold) -> bool {
        if self.find(&hold).is_some() {
            return false;
        }
        let at = self.held.partition_point(|held| held.hold.reason <= hold.reason);
        let (begun, until) = (false, None);
        self.held.insert(at, Held { hold, begun, until });
        true
    }

    /// Adds a hold for a command that the relay may reject.
    pub(crate) fn begin(&mut self, hold: Hold) {
        if self.add(hold.clone())
            && let Some(held) = self.find(&hold)
        {
            held.begun = true;
        }
    }

    /// Keeps a hold whose command the relay has carried out, or may have. `until`: when the hold expires.
    pub(crate) fn confirm(&mut self, hold: Hold, until: Option<Time>) {
        self.add(hold.clone());
        if let Some(held) = self.find(&hold) {
            (held.begun, held.until) = (false, until);
        }
    }

    /// Sets the destinations of a hold's copies.
    pub(crate) fn aim(&mut self, hold: &Hold, to: Vec<Endpoint>) {
        if let Some(held) = self.find(hold) {
            held.hold.to = to;
        }
    }

    /// Returns whether rtpproxy records a party's media. It keeps one record per stream: until N ends that, another R or C gets 0 and does
    /// nothing.
    pub(crate) fn has_record(&self, side: Side) -> bool {
        self.held
            .iter()
            .any(|held| !held.begun && held.hold.holder == Holder::Side(side) && held.hold.is_recording())
    }

    /// Removes a hold whose command the relay has rejected, unless an earlier command began it.
    pub(crate) fn refuse(&mut self, hold: &Hold) {
        self.held.retain(|held| !(held.begun && held.hold.is_same(hold)));
    }

    /// Ends the holds that match.
    pub(crate) fn end(&mut self, fits: impl Fn(&Hold) -> bool) {
        let (ended, left) = std::mem::take(&mut self.held).into_iter().partition(|held| fits(&held.hold));
        self.held = left;
        self.remember(ended);
    }

    /// Ends expired holds. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let is_over = |held: &Held| held.until.is_some_and(|until| until <= now);
        let (ended, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(is_over);
        self.held = left;
        let any = !ended.is_empty();
        self.remember(ended);
        any
    }

    /// Returns when the next hold expires.
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
