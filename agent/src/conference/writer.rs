//! Writes to the data plane what the book says, and reads what it has to know for that.

use super::Conferences;
use super::counters;
use shunt_conference::book::Next;
use shunt_conference::planner::Steps;
use shunt_conference::rows::{Data, Key};
use shunt_net::FiveTuple;
use shunt_plane::PlaneError;
use std::time::Duration;

/// Changes that come together are brought in one round.
const TOGETHER: Duration = Duration::from_millis(2);

/// For ever: do what the book says next.
pub async fn write(conferences: &Conferences) {
    loop {
        conferences.wake.notified().await;
        tokio::time::sleep(TOGETHER).await;
        loop {
            let done = match conferences.decide(|book, turn| book.next_rows(turn)) {
                Next::Idle => break,
                Next::Wait(time) => {
                    tokio::time::sleep(time).await;
                    Ok(())
                }
                Next::Adopt => adopt(conferences).await,
                Next::Write { steps, ending } => write_steps(conferences, &steps, &ending).await,
            };
            if let Err(error) = done {
                conferences.decide(|book, turn| book.broken(turn, &error.to_string()));
            }
        }
    }
}

/// Read what the data plane holds.
async fn adopt(conferences: &Conferences) -> Result<(), PlaneError> {
    let plane = &conferences.plane;
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
    let routes = conferences.known_routes(routes);
    conferences.decide(|book, turn| book.adopt(turn, offer, routes, rows));
    Ok(())
}

async fn write_steps(conferences: &Conferences, steps: &Steps, ending: &[Key]) -> Result<(), PlaneError> {
    let (mut _rows, mut read) = (None, None);
    if !ending.is_empty() {
        _rows = Some(conferences.rows_end.lock().await);
        read = counters::read(&conferences.plane, ending).await.ok();
    }
    let results = conferences.plane.write_conferences(steps).await?;
    conferences.counts.rows_written.inc_by(steps.len() as u64);
    let results = results
        .into_iter()
        .map(|result| result.map_err(|error| error.to_string()))
        .collect();
    conferences.decide(|book, turn| book.written(turn, results, read.as_ref()));
    Ok(())
}
