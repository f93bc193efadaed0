//! Passes the data plane's events to the call state.

use crate::core::Core;
use crate::tasks::ticks;
use shunt_admin::LinkWhat;
use shunt_calls::Idle;
use shunt_plane::{Event, Facts, Written};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const TOTALS_EVERY: Duration = Duration::from_secs(2);

/// The data plane's latest state, for the status.
#[derive(Debug, Default)]
pub struct State {
    current: Mutex<Current>,
}

/// Facts about the data plane, while it can be used.
#[derive(Clone, Debug, Default)]
pub struct Current {
    pub facts: Option<Arc<Facts>>,
    /// Reason why it cannot be used.
    pub down: Option<String>,
    /// Whether the switch has its operator's rows, as last read; `None`: not read since the connection was made.
    pub set_up: Option<bool>,
    /// State of the comparison of table and plan since the connection was made.
    phase: Phase,
    /// The data plane's own counters by name, and the time of reading.
    pub totals: Option<(Arc<BTreeMap<String, u64>>, Instant)>,
    /// Interfaces and the mode of the program attached to each, as last read; `None`: the data plane has no such table.
    pub interfaces: Option<Arc<[(String, String)]>>,
}

/// The problem of a switch without its operator's rows.
pub const NOT_SET_UP: &str = "the switch has no MAC address of its own and drops every packet; p4/bfrt_python/setup.py sets it up";

/// Since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Table and plan have not been compared.
    #[default]
    Connected,
    /// They differed, and the table is being corrected.
    Differed,
    Reconciled,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciling {
    /// It is the first one, and table and plan differ.
    Begun { name: String },
    /// Table and plan agree for the first time.
    Done { name: String },
}

impl Current {
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.facts.is_some() && self.down.is_none()
    }

    /// Returns whether table and plan have agreed since the connection was made.
    #[must_use]
    pub fn is_reconciled(&self) -> bool {
        self.phase == Phase::Reconciled
    }

    /// Returns one of the data plane's own counters, as last read.
    #[must_use]
    pub fn total(&self, name: &str) -> Option<u64> {
        self.totals.as_ref().and_then(|(totals, _)| totals.get(name).copied())
    }

    /// Returns the packets that the data plane has dropped, by reason, as last read.
    pub fn dropped(&self) -> impl Iterator<Item = (&str, u64)> {
        let totals = self.totals.iter().flat_map(|(totals, _)| &**totals);
        totals.filter_map(|(name, packets)| Some((name.strip_prefix(shunt_plane::DROPPED)?, *packets)))
    }

    fn name(&self) -> String {
        self.facts.as_deref().map(|facts| facts.name.clone()).unwrap_or_default()
    }
}

impl State {
    #[must_use]
    pub fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a comparison of table and plan. Returns a result to report, if any.
    pub fn compared(&self, differs: bool) -> Option<Reconciling> {
        let mut news = None;
        self.change(|current| {
            let name = current.name();
            (current.phase, news) = match (current.phase, differs) {
                (Phase::Reconciled, _) => (Phase::Reconciled, None),
                (Phase::Connected, true) => (Phase::Differed, Some(Reconciling::Begun { name })),
                // In a second comparison, only writes in the meantime make a difference.
                (Phase::Connected, false) | (Phase::Differed, _) => (Phase::Reconciled, Some(Reconciling::Done { name })),
            };
        });
        news
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        let current = self.current();
        current.facts.is_some() && current.down.is_none()
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Processes events until the plane is dropped.
pub async fn serve(core: &Arc<Core>, events: &mut mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        handle(core, event).await;
    }
}

async fn handle(core: &Arc<Core>, event: Event) {
    match event {
        Event::Up(facts) => {
            tracing::info!("data plane: {}, room for {} entries", facts.name, facts.capacity);
            for lack in &facts.lacks {
                tracing::warn!("data plane: {lack}");
            }
            core.events().data_plane(&facts.name, LinkWhat::Up, None);
            core.data_plane.change(|current| {
                (current.facts, current.down, current.set_up, current.phase) = (Some(facts), None, None, Phase::Connected)
            });
            core.set_data_plane(true);
            let counted = Arc::clone(core);
            tokio::spawn(async move { read_totals(&counted).await });
            if let Some(conferences) = core.conferences() {
                conferences.set_data_plane(None);
            }
        }
        Event::Down(reason) => {
            // The agent retries all the time; one line for each reason is enough.
            if core.data_plane.current().down.as_ref() != Some(&reason) {
                tracing::error!("data plane: {reason}");
                core.events()
                    .data_plane(&core.data_plane.current().name(), LinkWhat::Down, Some(&reason));
            }
            if let Some(conferences) = core.conferences() {
                conferences.set_data_plane(Some(&reason));
            }
            core.data_plane.change(|current| current.down = Some(reason));
            core.set_data_plane(false);
            core.pair().inspect(|pair| pair.unbound());
        }
        Event::Written(written) => core.written(written),
        Event::Notices(notices) => {
            core.stats.notices.inc_by(notices.len() as u64);
            match core.conferences() {
                Some(conferences) => {
                    let (theirs, of_calls): (Vec<_>, Vec<_>) = notices.into_iter().partition(|notice| conferences.owns(notice.key.dst));
                    conferences.noticed(&theirs);
                    core.noticed(&of_calls);
                }
                None => core.noticed(&notices),
            }
        }
        // For conferences of two: the counters show silent participants.
        Event::Idle(key) | Event::Active(key) if core.conferences().is_some_and(|conferences| conferences.owns(key.dst)) => {}
        Event::Idle(key) => {
            core.tell(|book, now| book.idle(now, key));
            // A switch reports only these fields for an orphan entry.
            core.delete_idle_orphans(&[Idle {
                key,
                idle: Some(Duration::MAX),
                sequence: None,
            }]);
        }
        Event::Active(key) => core.tell(|book, now| book.active(now, key)),
        Event::IdleTimes(read) => core.idle_times(&read),
        Event::Table {
            mut entries,
            changed,
            marked_otherwise,
        } => {
            if let Some(conferences) = core.conferences() {
                entries.retain(|entry| !conferences.owns(entry.key().dst));
            }
            core.compare(entries, changed, marked_otherwise);
        }
        Event::Collision { key, holder } => {
            tracing::warn!("{key} would meet the entry of {holder}, which has the same hash: that is removed");
            core.tell(|book, now| book.collided(now, holder));
        }
        Event::Held(keys) => core.tell(|book, now| book.held_back(now, &keys)),
        Event::Packets(frames) => {
            if let Some(conferences) = core.conferences() {
                conferences.copied(frames.iter().map(AsRef::as_ref));
            }
        }
    }
}

/// Reads the data plane's own counters periodically, without end.
pub async fn watch_totals(core: Arc<Core>) {
    let mut due = ticks(&core, TOTALS_EVERY);
    loop {
        read_totals(&core).await;
        due.tick().await;
    }
}

async fn read_totals(core: &Core) {
    let Some(plane) = core.plane() else { return };
    if let (Ok(totals), Ok(interfaces)) = tokio::join!(plane.totals(), plane.interfaces()) {
        let totals = Some((Arc::new(totals), Instant::now()));
        log_changed(core.data_plane.current().interfaces.as_deref(), interfaces.as_deref());
        core.data_plane
            .change(|current| (current.totals, current.interfaces) = (totals, interfaces.map(Into::into)));
    }
    let before = core.data_plane.current().set_up;
    // Rows go with bf_switchd, and the session with them.
    if before != Some(true)
        && let Ok(set_up) = plane.is_set_up().await
    {
        match (before, set_up) {
            (None, false) => tracing::error!("data plane: {NOT_SET_UP}"),
            (Some(false), true) => tracing::info!("data plane: the switch is set up now"),
            _ => {}
        }
        core.data_plane.change(|current| current.set_up = Some(set_up));
    }
}

/// Logs interfaces that have lost their program, or have it again.
fn log_changed(before: Option<&[(String, String)]>, now: Option<&[(String, String)]>) {
    for (name, mode) in now.unwrap_or_default() {
        let was = before
            .and_then(|before| before.iter().find(|(known, _)| known == name))
            .map(|(_, mode)| mode);
        if mode == "none" && was != Some(mode) {
            tracing::error!(
                "{name} has no program of the softswitch now: packets that arrive there bypass the data plane, and the relay carries them"
            );
        } else if mode != "none" && was.is_some_and(|was| was == "none") {
            tracing::warn!("{name} has its program again ({mode})");
        }
    }
}

/// Logs the reason of a failed write.
pub fn log_failure(written: &Written) {
    if let Some(detail) = &written.detail {
        tracing::warn!("data plane: a write failed: {detail}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_plan_agree_at_the_second_comparison_at_the_latest() {
        let state = State::default();
        assert!(matches!(state.compared(true), Some(Reconciling::Begun { .. })));
        assert!(!state.current().is_reconciled());
        assert!(matches!(state.compared(true), Some(Reconciling::Done { .. })));
        assert!(state.current().is_reconciled());
        assert_eq!((state.compared(true), state.compared(false)), (None, None));
        state.change(|current| current.phase = Phase::Connected);
        assert!(matches!(state.compared(false), Some(Reconciling::Done { .. })));
    }
}
