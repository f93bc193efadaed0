//! The kinds of work that are measured. Delays are microseconds from the call to its answer.

use crate::Failure;
use crate::session::Session;
use bytes::Bytes;
use serde_json::{Value, json};
use shunt_bfrt::pb::update::Type;
use std::time::Instant;
use tokio::io::AsyncReadExt as _;
use tonic::Code;

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Insert entries, `batch` to a request.
pub async fn insert(session: &mut Session, records: &[Bytes], batch: usize) -> Result<Value, Failure> {
    let updates: Vec<Bytes> = records.iter().map(|record| session.relay.update(Type::Insert, record)).collect();
    let requests: Vec<_> = updates.chunks(batch).map(|part| session.request(part.to_vec())).collect();
    let bytes: usize = requests.iter().map(prost::Message::encoded_len).sum();
    let mut delays = Vec::with_capacity(requests.len());
    let begun = Instant::now();
    for request in requests {
        let sent = Instant::now();
        session.write(request).await?;
        delays.push(microseconds(sent));
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({"entries": records.len(), "batch": batch, "bytes": bytes, "seconds": seconds, "delays_us": delays}))
}

/// Read the whole relay table.
pub async fn read(session: &mut Session) -> Result<Value, Failure> {
    let begun = Instant::now();
    let messages = session.read_all().await?;
    let seconds = begun.elapsed().as_secs_f64();
    // The default entry is read with the others.
    let entries = messages.iter().sum::<usize>().saturating_sub(1);
    Ok(json!({"entries": entries, "messages": messages.len(), "largest_message": messages.iter().max(), "seconds": seconds}))
}

/// Empty the relay table.
pub async fn clear(session: &mut Session) -> Result<Value, Failure> {
    let request = session.request(vec![session.relay.clear()]);
    let begun = Instant::now();
    session.write(request).await?;
    Ok(json!({"seconds": begun.elapsed().as_secs_f64()}))
}

/// Insert entries one at a time, and remove them.
pub async fn singles(session: &mut Session, records: &[Bytes], count: usize) -> Result<Value, Failure> {
    let mut delays = [Vec::new(), Vec::new()];
    for (kind, delays) in [Type::Insert, Type::Delete].into_iter().zip(&mut delays) {
        for record in records.iter().take(count) {
            delays.push(one(session, kind, record).await?);
        }
    }
    Ok(json!({"inserts_us": delays[0], "deletes_us": delays[1]}))
}

async fn one(session: &mut Session, kind: Type, record: &Bytes) -> Result<u64, Failure> {
    let request = session.request(vec![session.relay.update(kind, record)]);
    let sent = Instant::now();
    session.write(request).await?;
    Ok(microseconds(sent))
}

/// Insert and remove entries one at a time until standard input ends. The first line of output says that it has begun.
pub async fn beside(session: &mut Session, records: &[Bytes]) -> Result<Value, Failure> {
    let mut input = tokio::io::stdin();
    let ended = tokio::spawn(async move { input.read_to_end(&mut Vec::new()).await });
    let mut delays = Vec::new();
    println!("begun");
    for record in records.iter().cycle() {
        delays.push(one(session, Type::Insert, record).await?);
        let request = session.request(vec![session.relay.update(Type::Delete, record)]);
        let sent = Instant::now();
        match session.write(request).await {
            // Another client may have emptied the table meanwhile.
            Err(status) if status.code() != Code::Unknown => return Err(status.into()),
            _ => delays.push(microseconds(sent)),
        }
        if ended.is_finished() {
            break;
        }
    }
    Ok(json!({"delays_us": delays}))
}
