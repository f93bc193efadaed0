//! Prepares the data plane after a session begins: idle notices, media ranges, and removal of former source filters.

use crate::admission_tables::update;
use crate::error::PlaneError;
use crate::event::{Facts, FormerMedia};
use crate::questions;
use crate::settings::Settings;
use crate::tables::Tables;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::{self, entity, table_attribute, table_entry, update::Type};
use shunt_bfrt::schema::{Match, SchemaError, Table};
use shunt_bfrt::values::{exact, number, range};
use shunt_bfrt_client::Session;
use shunt_calls::MediaRange;
use shunt_net::octets;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the data plane checks for idle entries, and bounds of their time-outs, in ms.
const IDLE_POLL_MS: u32 = 1_000;
const IDLE_BOUNDS_MS: (u32, u32) = (1_000, 3_600_000);
/// `$MATCH_PRIORITY` of a media range; ranges do not overlap.
const PRIORITY: u32 = 1;
/// Codes of google.rpc.Code.
const NOT_FOUND: i32 = 5;
const EXISTS: i32 = 6;

/// Prepares the data plane for the agent. A rejected step is logged and disables its function only.
pub(crate) async fn come_up(session: &Session, tables: &Tables, settings: &Settings) -> Result<Facts, PlaneError> {
    let idle: Vec<Bytes> = tables
        .relay
        .iter()
        .flatten()
        .filter(|relay| relay.ages)
        .map(|relay| idle_notices(relay.tuple.id))
        .collect();
    let mut updates: Vec<(String, Bytes)> = idle.into_iter().map(|update| ("idle notices".to_owned(), update)).collect();
    updates.extend(
        tables
            .admission
            .clear()
            .into_iter()
            .map(|update| ("end of the source filters and blocks of another agent".to_owned(), update)),
    );
    let (media, former_media) = compare_media(session, tables, settings).await?;
    updates.extend(media);
    write(session, updates).await?;
    if let Some(samples) = &tables.samples {
        samples.adopt(session).await?;
    }
    let (name, totals) = (name(session, tables).await?, questions::totals(session, tables).await?);
    let capacity = totals.get("capacity").copied().unwrap_or(0);
    Ok(Facts {
        former_media,
        ..tables.facts(name, capacity)
    })
}

/// Writes the greylist, and renews it before its rows expire.
pub(crate) async fn refresh_greylist(session: &Session, tables: &Tables, settings: &Settings) -> Result<(), PlaneError> {
    let (rows, over) = tables.admission.greylist(&unverified(settings));
    if let Some(range) = over.first() {
        tracing::warn!(
            "the greylist has no room for ports {} to {} of {}: unknown sources reach the relay there at once",
            range.first_port,
            range.last_port,
            range.addr
        );
    }
    write(session, rows.into_iter().map(|update| ("greylist".to_owned(), update)).collect()).await
}

fn unverified(settings: &Settings) -> Vec<MediaRange> {
    let media = settings.media.iter().filter(|range| !settings.verified.contains(range));
    media.copied().collect()
}

async fn write(session: &Session, updates: Vec<(String, Bytes)>) -> Result<(), PlaneError> {
    if updates.is_empty() {
        return Ok(());
    }
    let (names, updates): (Vec<String>, Vec<Bytes>) = updates.into_iter().unzip();
    for (name, answer) in names.iter().zip(session.write(updates, TIMEOUT).await?) {
        match answer {
            Err(error) if error.code != EXISTS => tracing::warn!("the data plane took no {name}: {}", error.message),
            _ => {}
        }
    }
    Ok(())
}

fn idle_notices(table_id: u32) -> Bytes {
    let idle = pb::IdleTable {
        ttl_query_interval: IDLE_POLL_MS,
        min_ttl: IDLE_BOUNDS_MS.0,
        max_ttl: IDLE_BOUNDS_MS.1,
        idle_table_mode: pb::idle_table::IdleTableMode::IdleTableNotifyMode.into(),
        enable: true,
    };
    let attribute = pb::TableAttribute {
        table_id,
        attribute: Some(table_attribute::Attribute::IdleTable(idle)),
    };
    let entity = entity::Entity::TableAttribute(attribute);
    update(Type::Insert, pb::Entity { entity: Some(entity) })
}

/// Returns updates for missing media ranges, and the ranges that the configuration no longer has. Only this agent's program uses the table,
/// so a former agent has written them.
async fn compare_media(
    session: &Session,
    tables: &Tables,
    settings: &Settings,
) -> Result<(Vec<(String, Bytes)>, Vec<FormerMedia>), PlaneError> {
    let (mut updates, mut former) = (Vec::new(), Vec::new());
    for (at, table) in tables.media.iter().enumerate() {
        let wanted: Vec<&MediaRange> = settings
            .media
            .iter()
            .filter(|range| usize::from(range.addr.is_ipv6()) == at)
            .collect();
        let Some(table) = table else {
            if let Some(first) = wanted.first() {
                tracing::warn!("the data plane has no media table for {}: no source is learned there", first.addr);
            }
            continue;
        };
        let form = MediaForm::new(table)?;
        let present = form.present(session).await?;
        for range in wanted.into_iter().filter(|range| !present.contains_key(range)) {
            let name = format!("media range {} to {} of {}", range.first_port, range.last_port, range.addr);
            updates.push((name, form.insert(range)));
        }
        let others = present
            .into_iter()
            .filter(|(range, _)| !settings.media.is_empty() && !settings.media.contains(range));
        former.extend(others.map(|(range, priority)| FormerMedia { range, priority }));
    }
    Ok((updates, former))
}

/// Removes media ranges that the configuration no longer has. Returns the removed ranges.
pub(crate) async fn remove_media(session: &Session, tables: &Tables, former: Vec<FormerMedia>) -> Result<Vec<FormerMedia>, PlaneError> {
    let mut updates = Vec::new();
    for FormerMedia { range, priority } in &former {
        let table = tables.media[usize::from(range.addr.is_ipv6())].as_ref();
        let table = table.ok_or_else(|| SchemaError(format!("no media table for {}", range.addr)))?;
        updates.push(MediaForm::new(table)?.update(Type::Delete, range, *priority));
    }
    let mut removed = Vec::new();
    for (former, answer) in former.into_iter().zip(session.write(updates, TIMEOUT).await?) {
        let FormerMedia { range, .. } = former;
        let name = format!("media range {} to {} of {}", range.first_port, range.last_port, range.addr);
        match answer {
            Err(error) if error.code != NOT_FOUND => {
                tracing::warn!(
                    "data plane: {name} cannot be removed; the next audit tries again: {}",
                    error.message
                );
            }
            _ => {
                tracing::info!("data plane: {name} is removed: the configuration no longer has it");
                removed.push(former);
            }
        }
    }
    Ok(removed)
}

/// Decodes the range of a media table's key.
fn media_of(address: &[u8], first: u64, last: u64) -> Option<MediaRange> {
    let addr = match address {
        [a, b, c, d] => IpAddr::from([*a, *b, *c, *d]),
        octets => IpAddr::from(<[u8; 16]>::try_from(octets).ok()?),
    };
    Some(MediaRange {
        addr,
        first_port: u16::try_from(first).ok()?,
        last_port: u16::try_from(last).ok()?,
    })
}

/// Field numbers of a media table.
struct MediaForm<'a> {
    table: &'a Table,
    address: u32,
    ports: u32,
    priority: Option<u32>,
    action: u32,
}

impl<'a> MediaForm<'a> {
    fn new(table: &'a Table) -> Result<Self, SchemaError> {
        let ports = table.key.named("dst_port")?;
        if ports.matches != Some(Match::Range) {
            return Err(SchemaError(format!("{}: {} does not match a range", table.name, ports.name)));
        }
        let mut actions = table.actions.iter().filter(|action| !action.default_only);
        let action = actions.next().ok_or_else(|| SchemaError(format!("{} has no action", table.name)))?;
        Ok(Self {
            address: table.key.named("dst_addr")?.id,
            ports: ports.id,
            priority: table.key.find("$MATCH_PRIORITY").map(|field| field.id),
            action: action.id,
            table,
        })
    }

    /// Reads the ranges in the table, each with its priority.
    async fn present(&self, session: &Session) -> Result<HashMap<MediaRange, u32>, PlaneError> {
        let entry = pb::TableEntry {
            table_id: self.table.id,
            ..Default::default()
        };
        let entity = entity::Entity::TableEntry(entry);
        let found = session.read(vec![pb::Entity { entity: Some(entity) }], TIMEOUT).await?;
        Ok(found.into_iter().filter_map(|entity| self.read(entity)).collect())
    }

    fn read(&self, encoded: Bytes) -> Option<(MediaRange, u32)> {
        use shunt_bfrt::pb::key_field::MatchType;
        let Some(entity::Entity::TableEntry(entry)) = pb::Entity::decode(encoded).ok()?.entity else {
            return None;
        };
        let Some(table_entry::Value::Key(key)) = entry.value else {
            return None;
        };
        let field = |id| key.fields.iter().find(|field| field.field_id == id)?.match_type.as_ref();
        match (field(self.address)?, field(self.ports)?) {
            (MatchType::Exact(address), MatchType::Range(ports)) => {
                let priority = match self.priority.and_then(field) {
                    Some(MatchType::Exact(priority)) => number(&priority.value),
                    _ => u64::from(PRIORITY),
                };
                let range = media_of(&address.value, number(&ports.low), number(&ports.high))?;
                Some((range, u32::try_from(priority).unwrap_or(PRIORITY)))
            }
            _ => None,
        }
    }

    fn insert(&self, media: &MediaRange) -> Bytes {
        self.update(Type::Insert, media, PRIORITY)
    }

    fn update(&self, what: Type, media: &MediaRange, priority: u32) -> Bytes {
        let mut fields = vec![
            exact(self.address, &*octets(media.addr)),
            range(self.ports, media.first_port.to_be_bytes(), media.last_port.to_be_bytes()),
        ];
        fields.extend(self.priority.map(|id| exact(id, priority.to_be_bytes())));
        let entry = pb::TableEntry {
            table_id: self.table.id,
            value: Some(table_entry::Value::Key(pb::TableKey { fields })),
            data: Some(pb::TableData {
                action_id: self.action,
                fields: vec![],
            }),
            ..Default::default()
        };
        let entity = entity::Entity::TableEntry(entry);
        update(what, pb::Entity { entity: Some(entity) })
    }
}

/// Returns the target's name for operators.
async fn name(session: &Session, tables: &Tables) -> Result<String, PlaneError> {
    let Some(table) = &tables.interface else {
        let mut bits: Vec<String> = tables.hashes.iter().flatten().map(|hash| hash.bits.to_string()).collect();
        bits.sort_unstable();
        bits.dedup();
        let stores = if bits.is_empty() {
            String::new()
        } else {
            format!(" (5-tuples taken as {}-bit hashes)", bits.join("- and "))
        };
        return Ok(format!("BF Runtime target{stores}"));
    };
    let mut modes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in questions::read_table(session, table, TIMEOUT).await? {
        let text = |name: &str| row.text(name).unwrap_or("?").to_owned();
        modes.entry(text("mode")).or_default().push(text("name"));
        if row.number("rx_queues") == Some(1) {
            tracing::warn!(
                "{} has one receive queue: one processor core handles all of its packets",
                text("name")
            );
        }
    }
    let modes: Vec<String> = modes
        .into_iter()
        .map(|(mode, names)| format!("{mode} XDP on {}", names.join(", ")))
        .collect();
    let interfaces = if modes.is_empty() {
        "no interface".to_owned()
    } else {
        modes.join("; ")
    };
    Ok(format!("softswitch ({interfaces})"))
}
