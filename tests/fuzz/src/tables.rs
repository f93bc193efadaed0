//! What comes over BF Runtime and out of the journal.

use prost::Message;
use shunt_bfrt::envelope::WriteRequest;
use shunt_bfrt::pb;
use shunt_bfrt::schema::Schema;
use shunt_bfrt::values::{Data, Key};
use shunt_calls::{Book, Relay, Row, Settings, Time};
use shunt_latch::Policy;
use shunt_rtpproxy::capability::KeepAlive;
use std::sync::OnceLock;
use std::time::Duration;

const RELAY_SCHEMA: &str = include_str!("../../../softswitch/schema/relay.json");

/// The schema that a target hands out.
pub fn schema(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Schema::parse(&[text]);
    }
}

/// A request to write, decoded against the schema as the server does.
pub fn write(data: &[u8]) {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| Schema::parse(&[RELAY_SCHEMA]).expect("the softswitch's own schema"));
    let Ok(request) = WriteRequest::decode(data) else { return };
    let updates = request.updates.iter().filter_map(|update| pb::Update::decode(update.clone()).ok());
    for entity in updates.filter_map(|update| update.entity) {
        let Some(pb::entity::Entity::TableEntry(entry)) = &entity.entity else {
            continue;
        };
        let Some(table) = schema.table_by_id(entry.table_id) else {
            continue;
        };
        if let Some(pb::table_entry::Value::Key(key)) = &entry.value
            && let Ok(key) = Key::decode(table, key)
        {
            let _ = (0..table.key.len()).map(|place| key.number(place)).max();
        }
        let _ = Data::decode(table, entry.data.as_ref());
    }
}

/// A row of the journal, of this version or another; one that is restored has no more lines than it says.
pub fn journal_row(data: &[u8]) {
    let Ok(row) = serde_json::from_slice::<Row>(data) else { return };
    let mut book = Book::new(Settings::default(), Policy::default());
    book.add_relay(Relay {
        name: row.relay.clone(),
        addresses: Vec::new(),
        ttl: Duration::from_secs(60),
        setup_ttl: Duration::from_secs(60),
        symmetric_bridging: false,
        advertised: Vec::new(),
        verifies_sources: false,
        keepalive: KeepAlive::Lookup,
        kind: shunt_calls::RelayKind::Rtpproxy,
        may_query: false,
    });
    let now = Time::from(Duration::from_secs(1000));
    if let Ok(line) = book.restore(now, Duration::from_secs(1_700_000_000), &row) {
        assert!(book.line(line).is_some());
        let _ = book.tick(now, 100);
    }
}
