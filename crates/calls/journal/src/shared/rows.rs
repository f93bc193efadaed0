//! The rows of a group in Redis: written with the fencing token, read in pieces, by Call-ID and by relay port.

use super::link::{Link, LinkError, TIMEOUT};
use crate::change::{Change, Changes, Documents};
use redis::{Script, ScriptInvocation, cmd};
use shunt_calls::RowKey;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The format of the rows, stored beside them. The agent in Python wrote 1 and 2.
const FORMAT: &str = "3";
/// Changes in one script: Redis serves no other client while it runs.
const AT_ONCE: usize = 200;
/// Lifetime of rows that are moved aside.
const WEEK_S: u64 = 604_800;
const MOST_BAD: usize = 1000;
const HASHES: [&str; 5] = ["lines", "index", "ports", "documents", "bad"];

/// KEYS: token, then those of `HASHES`. ARGV: token, then for each change its letter, its field and its values.
const WRITE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local at, last = 2, #ARGV
local function forget(field)
  redis.call('HDEL', KEYS[2], field)
  redis.call('ZREM', KEYS[3], field)
  redis.call('ZREM', KEYS[4], '0' .. field, '1' .. field)
end
while at <= last do
  local kind, field = ARGV[at], ARGV[at + 1]
  if kind == 'P' then
    redis.call('HSET', KEYS[2], field, ARGV[at + 2])
    redis.call('ZADD', KEYS[3], 0, field)
    for side = 0, 1 do
      local port = ARGV[at + 3 + side]
      if port == '' then redis.call('ZREM', KEYS[4], side .. field) else redis.call('ZADD', KEYS[4], port, side .. field) end
    end
    at = at + 5
  elseif kind == 'R' then
    forget(field)
    at = at + 2
  elseif kind == 'A' then
    local row = redis.call('HGET', KEYS[2], field)
    forget(field)
    if row then
      redis.call('LPUSH', KEYS[6], ARGV[at + 2] .. row)
      redis.call('LTRIM', KEYS[6], 0, ARGV[at + 3])
    end
    at = at + 4
  elseif kind == 'D' then
    redis.call('HSET', KEYS[5], field, ARGV[at + 2])
    at = at + 3
  else
    redis.call('HDEL', KEYS[5], field)
    at = at + 2
  end
end
return 1
";
/// KEYS: token, then the keys to delete. ARGV: token.
const EMPTY: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
for at = 2, #KEYS do redis.call('UNLINK', KEYS[at]) end
return 1
";
/// KEYS: token, format, then keys of another format. ARGV: token, format, the new name, seconds until it expires.
const SET_FORMAT: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
for at = 3, #KEYS do
  if redis.call('EXISTS', KEYS[at]) == 1 then
    redis.call('RENAME', KEYS[at], KEYS[at] .. ARGV[3])
    redis.call('EXPIRE', KEYS[at] .. ARGV[3], ARGV[4])
  end
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
";

/// A row as read: its field and its content.
pub(crate) type Found = (Vec<u8>, Vec<u8>);

/// Returns the field of a row. Call-IDs and tags are words of a command, so they have no blanks.
pub(crate) fn field(key: &RowKey) -> Vec<u8> {
    let media = key.media.map_or_else(|| "-".to_owned(), |media| media.to_string());
    [&key.call_id.0, &b" "[..], &key.tag.0, b" ", media.as_bytes()].concat()
}

/// Returns the key in a field.
pub(crate) fn key_of(field: &[u8]) -> Option<RowKey> {
    let mut parts = field.splitn(3, |byte| *byte == b' ');
    let (call_id, tag, media) = (parts.next()?, parts.next()?, parts.next()?);
    let media = match media {
        b"-" => None,
        number => Some(std::str::from_utf8(number).ok()?.parse().ok()?),
    };
    Some(RowKey {
        call_id: shunt_calls::Text(call_id.to_vec()),
        tag: shunt_calls::Text(tag.to_vec()),
        media,
    })
}

fn keys<'a>(call: &mut ScriptInvocation<'a>, link: &Link, names: &[&str]) {
    for name in names {
        call.key(link.settings.key(name));
    }
}

async fn run(link: &mut Link, call: ScriptInvocation<'_>, limit: Duration) -> Result<(), LinkError> {
    let done: i64 = link.ask(limit, async |redis| call.invoke_async(redis).await).await?;
    if done == 1 { Ok(()) } else { Err(LinkError::Fenced) }
}

/// Ensures that the stored rows have this version's format; others are moved aside. Returns whether any were.
pub(crate) async fn open(link: &mut Link) -> Result<bool, LinkError> {
    let format_key = link.settings.key("format");
    let found: Option<String> = link
        .ask(TIMEOUT, async |redis| cmd("GET").arg(&format_key).query_async(redis).await)
        .await?;
    if found.as_deref() == Some(FORMAT) {
        return Ok(false);
    }
    // An emptied store has no format, but may have rows of this one.
    let names: &[&str] = if found.is_some() { &HASHES } else { &[] };
    set_format(link, names).await?;
    Ok(found.is_some())
}

/// Moves all rows aside, because they have another format or are not rows.
pub(crate) async fn set_aside(link: &mut Link) -> Result<(), LinkError> {
    set_format(link, &HASHES).await
}

async fn set_format(link: &mut Link, aside: &[&str]) -> Result<(), LinkError> {
    let script = Script::new(SET_FORMAT);
    let mut call = script.prepare_invoke();
    keys(&mut call, link, &["token", "format"]);
    keys(&mut call, link, aside);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.arg(link.settings.token.load(Ordering::Relaxed)).arg(FORMAT);
    call.arg(format!(".aside-{}", now.as_micros())).arg(WEEK_S);
    run(link, call, TIMEOUT).await
}

/// Removes all rows.
pub(crate) async fn empty(link: &mut Link) -> Result<(), LinkError> {
    let script = Script::new(EMPTY);
    let mut call = script.prepare_invoke();
    keys(&mut call, link, &["token", "lines", "index", "ports"]);
    call.arg(link.settings.token.load(Ordering::Relaxed));
    run(link, call, TIMEOUT).await
}

/// Writes changes; written ones are removed from `changes` and `documents`.
pub(crate) async fn commit(link: &mut Link, changes: &mut Changes, documents: &mut Documents) -> Result<(), LinkError> {
    let script = Script::new(WRITE);
    let mut order: Vec<RowKey> = changes.keys().cloned().collect();
    // Deletions come first, because they free space.
    order.sort_by_cached_key(|key| matches!(changes.get(key), Some(Change::Put { .. })));
    let mut names: Vec<String> = documents.keys().cloned().collect();
    while !order.is_empty() || !names.is_empty() {
        let rows = order.split_off(order.len().min(AT_ONCE));
        let rows = std::mem::replace(&mut order, rows);
        let mut call = script.prepare_invoke();
        keys(&mut call, link, &["token"]);
        keys(&mut call, link, &HASHES);
        call.arg(link.settings.token.load(Ordering::Relaxed));
        for key in &rows {
            if let Some(change) = changes.get(key) {
                put_change(&mut call, key, change);
            }
        }
        let some = std::mem::take(&mut names);
        for name in &some {
            match documents.get(name) {
                Some(Some(body)) => call.arg("D").arg(name).arg(body),
                _ => call.arg("X").arg(name),
            };
        }
        run(link, call, 2 * TIMEOUT).await?;
        rows.iter().for_each(|key| drop(changes.remove(key)));
        some.iter().for_each(|name| drop(documents.remove(name)));
    }
    Ok(())
}

fn put_change(call: &mut ScriptInvocation<'_>, key: &RowKey, change: &Change) {
    let field = field(key);
    match change {
        Change::Put { ports, json } => {
            call.arg("P").arg(field).arg(json);
            for port in ports {
                call.arg(port.map(|port| port.to_string()).unwrap_or_default());
            }
        }
        Change::Remove => {
            call.arg("R").arg(field);
        }
        Change::SetAside(reason) => {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let head = format!("{time} {reason}: ");
            call.arg("A").arg(field).arg(head).arg(MOST_BAD - 1);
        }
    }
}

// -- reading ---------------------------------------------------------------------------------------

/// Returns the number of rows.
pub(crate) async fn count(link: &mut Link) -> Result<u64, LinkError> {
    let index = link.settings.key("index");
    link.ask(TIMEOUT, async |redis| cmd("ZCARD").arg(index).query_async(redis).await)
        .await
}

async fn rows_of(link: &mut Link, fields: Vec<Vec<u8>>) -> Result<Vec<Found>, LinkError> {
    if fields.is_empty() {
        return Ok(Vec::new());
    }
    let lines = link.settings.key("lines");
    let rows: Vec<Option<Vec<u8>>> = link
        .ask(2 * TIMEOUT, async |redis| {
            cmd("HMGET").arg(lines).arg(&fields).query_async(redis).await
        })
        .await?;
    Ok(fields
        .into_iter()
        .zip(rows)
        .filter_map(|(field, row)| Some((field, row?)))
        .collect())
}

/// Returns up to `most` rows behind a field, and the last field that was read; `None` at the end.
pub(crate) async fn piece(link: &mut Link, after: &[u8], most: usize) -> Result<Option<(Vec<Found>, Vec<u8>)>, LinkError> {
    let from = if after.is_empty() { b"-".to_vec() } else { [b"(", after].concat() };
    let index = link.settings.key("index");
    let fields: Vec<Vec<u8>> = link
        .ask(TIMEOUT, async |redis| {
            let mut range = cmd("ZRANGEBYLEX");
            range.arg(index).arg(from).arg("+").arg("LIMIT").arg(0).arg(most);
            range.query_async(redis).await
        })
        .await?;
    let Some(last) = fields.last().cloned() else { return Ok(None) };
    Ok(Some((rows_of(link, fields).await?, last)))
}

/// Returns the rows of a Call-ID.
pub(crate) async fn of_call(link: &mut Link, call_id: &[u8], most: usize) -> Result<Vec<Found>, LinkError> {
    let index = link.settings.key("index");
    let (from, to) = ([b"[", call_id, b" "].concat(), [b"(", call_id, b"!"].concat());
    let fields: Vec<Vec<u8>> = link
        .ask(TIMEOUT, async |redis| {
            let mut range = cmd("ZRANGEBYLEX");
            range.arg(index).arg(from).arg(to).arg("LIMIT").arg(0).arg(most);
            range.query_async(redis).await
        })
        .await?;
    rows_of(link, fields).await
}

/// Returns the rows for which a relay assigned this port, the one below or the one above.
pub(crate) async fn of_port(link: &mut Link, port: u16, most: usize) -> Result<Vec<Found>, LinkError> {
    let ports = link.settings.key("ports");
    let members: Vec<Vec<u8>> = link
        .ask(TIMEOUT, async |redis| {
            let mut range = cmd("ZRANGEBYSCORE");
            range.arg(ports).arg(port.saturating_sub(1)).arg(u32::from(port) + 1);
            range.arg("LIMIT").arg(0).arg(most);
            range.query_async(redis).await
        })
        .await?;
    rows_of(
        link,
        members.into_iter().filter_map(|member| Some(member.get(1..)?.to_vec())).collect(),
    )
    .await
}

/// Returns the documents other than calls.
pub(crate) async fn documents(link: &mut Link) -> Result<Vec<(String, Vec<u8>)>, LinkError> {
    let documents = link.settings.key("documents");
    link.ask(4 * TIMEOUT, async |redis| cmd("HGETALL").arg(documents).query_async(redis).await)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_field_is_read_as_it_was_written(call in "[!-~]{1,20}", tag in "[!-~]{1,10}", media: Option<u32>) {
            let key = RowKey { call_id: shunt_calls::Text(call.into_bytes()), tag: shunt_calls::Text(tag.into_bytes()), media };
            prop_assert_eq!(key_of(&field(&key)), Some(key));
        }
    }
}
