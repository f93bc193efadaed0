//! Beginning and end of a session, and the data plane's notices in it.

use super::{Done, Engine, GREYLIST_AFTER};
use crate::batch::Item;
use crate::come_up::come_up;
use crate::event::Event;
use crate::notice::Digest;
use crate::plane::Link;
use crate::row::TableRow;
use crate::tables::Tables;
use prost::Message as _;
use shunt_bfrt::pb::{self, idle_timeout_notification::NotificationType};
use shunt_bfrt_client as client;
use shunt_calls::{Idle, Outcome};
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    pub(super) fn client_event(&mut self, event: client::Event) {
        match event {
            client::Event::Up => self.connected(),
            client::Event::Down(reason) => self.down(reason),
            client::Event::Digest(digest) => self.digest(&digest),
            client::Event::Idle(notice) => self.idle(Instant::now(), &notice),
        }
    }

    /// A session begins: its facts, and the preparation that it needs.
    pub(super) fn connected(&mut self) {
        self.session += 1;
        let session = self.session;
        let Ok(bound) = self.shared.client.session() else { return };
        match Tables::new(bound.schema(), bound.contexts(), &self.settings) {
            Ok(tables) => {
                let settings = Arc::clone(&self.settings);
                let tables = Arc::new(tables);
                self.tasks.spawn(async move {
                    let facts = come_up(&bound, &tables, &settings).await;
                    let link = facts.map(|facts| Link {
                        session: bound.clone(),
                        tables,
                        facts: Arc::new(facts),
                    });
                    Done::Up(session, Box::new(link.map_err(|error| error.to_string())))
                });
            }
            Err(error) => {
                tracing::error!("the data plane {} cannot be used: {error}", self.settings.target.address);
                self.down(format!("it cannot be used: {error}"));
            }
        }
    }

    pub(super) fn came_up(&mut self, now: Instant, result: Result<Link, String>) {
        let link = match result {
            Ok(link) => link,
            Err(reason) => {
                if let Ok(session) = self.shared.client.session() {
                    session.give_up(&reason);
                }
                return;
            }
        };
        self.note_hashes(now, &link.tables);
        self.admission.start_over(now);
        self.rows_due = self.admission.is_dirty().then_some(now);
        self.greylist_due = Some(now + GREYLIST_AFTER);
        self.audit.hurry(now);
        self.former_media.found(&link.facts.former_media);
        for lack in &link.facts.lacks {
            tracing::info!("data plane: {lack}");
        }
        let facts = Arc::clone(&link.facts);
        self.link.send_modify(|now| *now = Ok(link.clone()));
        self.up = Some(link);
        self.out.push(Event::Up(facts));
    }

    pub(super) fn down(&mut self, reason: String) {
        self.up = None;
        self.sampling = false;
        self.idle_since.clear();
        self.session += 1;
        self.audit.stop();
        self.link.send_modify(|now| *now = Err(reason.clone()));
        self.out.push(Event::Down(reason.clone()));
        let detail: Arc<str> = reason.into();
        for job in self.queue.drain() {
            let mut item = Item::new(job);
            item.finish(Outcome::Unavailable, Some(Arc::clone(&detail)));
            self.result(item);
        }
    }

    pub(super) fn digest(&mut self, digest: &pb::DigestList) {
        let Some(link) = &self.up else { return };
        match link.tables.learns.iter().find_map(|learn| learn.read(digest)) {
            Some(Digest::Notices(notices)) => self.out.push(Event::Notices(notices)),
            Some(Digest::Packets(packets)) => self.out.push(Event::Packets(packets)),
            Some(Digest::Held(keys)) => self.out.push(Event::Held(keys)),
            None => {}
        }
    }

    pub(super) fn idle(&mut self, now: Instant, notice: &pb::IdleTimeoutNotification) {
        let (Some(link), Some(entry)) = (&self.up, &notice.table_entry) else {
            return;
        };
        let relay = link.tables.relay.iter().flatten().find(|relay| relay.tuple.id == entry.table_id);
        let entity = pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry.clone())),
        };
        let encoded = entity.encode_to_vec();
        let row = TableRow::decode(&encoded).ok().flatten();
        let Some(key) = relay.zip(row).and_then(|(relay, row)| relay.tuple.key_of(&row.key)) else {
            return;
        };
        if notice.r#type() == NotificationType::EntryIdle {
            // A target that reports idle times is asked for them.
            if link.tables.quality[usize::from(key.is_v6())].is_none() {
                let since = now.checked_sub(self.settings.entry_idle).unwrap_or(now);
                self.idle_since.insert(key, since);
            }
            self.out.push(Event::Idle(key));
        } else {
            self.idle_since.remove(&key);
            self.out.push(Event::Active(key));
        }
    }

    /// A switch reports that an entry is idle, but not for how long. The time counts from the first report.
    pub(super) fn age(&mut self, now: Instant, read: &mut [Idle]) {
        let Some(link) = &self.up else { return };
        for one in read {
            if link.tables.quality[usize::from(one.key.is_v6())].is_some() {
                continue;
            }
            match one.idle {
                Some(idle) if idle >= self.settings.entry_idle => {
                    let first = now.checked_sub(idle).unwrap_or(now);
                    let since = *self.idle_since.entry(one.key).or_insert(first);
                    one.idle = Some(now.saturating_duration_since(since));
                }
                Some(_) => drop(self.idle_since.remove(&one.key)),
                None => {}
            }
        }
    }
}
