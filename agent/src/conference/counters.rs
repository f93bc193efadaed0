//! Counters of rows, read from the data plane.

use shunt_calls::Counters;
pub use shunt_conference::book::Readings;
use shunt_conference::rows::Key;
use shunt_net::FiveTuple;
use shunt_plane::{Plane, PlaneError};

/// Read the counters of rows; those that are not there are left out.
///
/// # Errors
/// The data plane does not answer.
pub async fn read(plane: &Plane, keys: &[Key]) -> Result<Readings, PlaneError> {
    let mut found = Readings::new();
    let of = |wanted: fn(&Key) -> bool| keys.iter().filter(|key| wanted(key)).cloned().collect::<Vec<Key>>();
    let mut plainly = of(|key| matches!(key, Key::Copy(..)));
    let streams = of(|key| matches!(key, Key::Stream(..)));
    if !streams.is_empty() {
        match plane.reception(&streams).await? {
            Some(read) => found.extend(read),
            None => plainly.extend(streams),
        }
    }
    if !plainly.is_empty() {
        let read = plane.conference_counters(Some(&plainly)).await?;
        found.extend(read.into_iter().map(|one| {
            let counters = Counters {
                packets: one.packets,
                bytes: one.octets,
                ..Counters::default()
            };
            (one.key, counters)
        }));
    }
    let flow = |key: &Key| match key {
        Key::Relay(flow) => Some(*flow),
        _ => None,
    };
    let relays: Vec<FiveTuple> = keys.iter().filter_map(flow).collect();
    if !relays.is_empty() {
        let read = plane.counters(&relays).await?;
        found.extend(read.into_iter().map(|(flow, counters)| (Key::Relay(flow), counters)));
    }
    Ok(found)
}
