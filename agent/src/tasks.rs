//! Background tasks of the whole process. The end of one is a fault, which is logged and counted; the task is restarted.

use crate::core::Core;
use prometheus_client::metrics::counter::Counter;
use shunt_admin::AgentWhat;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep};

/// Pause between a fault and the restart.
const PAUSE: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(100);
/// Delay of the loop that is logged.
const LATE: Duration = Duration::from_millis(100);

/// Keeps a task running. `work` makes its future for each start.
pub fn keep_running<F>(core: &Arc<Core>, name: String, work: impl FnMut() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let core = Arc::clone(core);
    tokio::spawn(async move { keep(&name, &core.stats.tasks_restarted, work).await });
}

async fn keep<F>(name: &str, restarted: &Counter, mut work: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        match tokio::spawn(work()).await {
            Ok(()) => tracing::error!("task {name} has ended; it is started again"),
            Err(error) if error.is_cancelled() => return,
            Err(error) => tracing::error!("task {name} has failed, and is started again: {error}"),
        }
        restarted.inc();
        sleep(PAUSE).await;
    }
}

/// Ticks at whole periods from the start on, so that tasks due at the same time wake the loop once.
#[must_use]
pub fn ticks(core: &Core, period: Duration) -> Interval {
    let uptime = core.clock().uptime();
    let periods = (uptime.as_micros() / period.as_micros().max(1)) as u32;
    let mut interval = interval_at(core.clock().at(period * (periods + 1)).into(), period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Reports when the loop is late, because commands wait then.
pub async fn watch_lateness(core: Arc<Core>) {
    let mut interval = ticks(&core, PERIOD);
    let (mut last, mut rare) = (Instant::now(), shunt_control::Rare::default());
    loop {
        interval.tick().await;
        let behind = last.elapsed().saturating_sub(PERIOD);
        last = Instant::now();
        if behind < LATE {
            continue;
        }
        core.stats.late.inc();
        if let Some(left_out) = rare.write(core.clock().now()) {
            let late = format!(
                "the loop is {} ms late; {left_out} more since the last such line",
                behind.as_millis()
            );
            tracing::warn!("commands wait: {late}");
            core.events().agent(AgentWhat::Late, &late);
        }
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn work_that_fails_or_ends_is_counted_and_begun_again() {
        let (restarted, begun) = (Counter::default(), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&begun);
        let work = move || {
            let time = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match time {
                    0 => panic!("a fault"),
                    1 => {}
                    _ => std::future::pending().await,
                }
            }
        };
        let kept = tokio::time::timeout(10 * PAUSE, keep("of a test", &restarted, work)).await;
        assert!(kept.is_err(), "it goes on for as long as the process");
        assert_eq!((begun.load(Ordering::Relaxed), restarted.get()), (3, 2));
    }
}
