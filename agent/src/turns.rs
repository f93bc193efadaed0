//! The commands of one call, in order: each runs when the one before has ended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Most waiting commands of one Call-ID. A SIP server repeats unanswered commands; more are an attack or a fault.
const MOST_WAITING: usize = 64;

type Place = oneshot::Receiver<()>;
type Queues = HashMap<Arc<[u8]>, VecDeque<oneshot::Sender<()>>>;

/// Queues by Call-ID. Other calls do not wait.
#[derive(Debug, Default)]
pub struct Turns {
    queues: Mutex<Queues>,
}

/// The right to run. Dropping it passes it to the next command.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    call_id: Arc<[u8]>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the right to run. `None`: too many commands wait already.
    pub async fn take(&self, call_id: &[u8]) -> Option<Turn<'_>> {
        let (call_id, place) = self.enter(call_id)?;
        if let Some(place) = place {
            let mut waiting = Waiting {
                turns: self,
                call_id: &call_id,
                place,
            };
            (&mut waiting.place).await.ok()?;
            // The command runs; nothing is left to pass on.
            waiting.place.close();
        }
        Some(Turn { turns: self, call_id })
    }

    /// The place in the queue; with `None` the caller may run.
    fn enter(&self, call_id: &[u8]) -> Option<(Arc<[u8]>, Option<Place>)> {
        let mut queues = self.lock();
        let Some((key, _)) = queues.get_key_value(call_id) else {
            let key: Arc<[u8]> = call_id.into();
            queues.insert(Arc::clone(&key), VecDeque::new());
            return Some((key, None));
        };
        let key = Arc::clone(key);
        let queue = queues.get_mut(&key)?;
        if queue.len() >= MOST_WAITING {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        queue.push_back(sender);
        Some((key, Some(receiver)))
    }

    fn end(&self, call_id: &[u8]) {
        let mut queues = self.lock();
        while let Some(next) = queues.get_mut(call_id).and_then(VecDeque::pop_front) {
            if next.send(()).is_ok() {
                return;
            }
        }
        queues.remove(call_id);
    }
}

/// A place in a queue. If it is dropped when its turn has just come, the turn passes to the next one.
struct Waiting<'a> {
    turns: &'a Turns,
    call_id: &'a [u8],
    place: Place,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.place.try_recv().is_ok() {
            self.turns.end(self.call_id);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end(&self.call_id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn one_at_a_time_in_order() {
        let turns = Arc::new(Turns::default());
        let first = turns.take(b"call").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _turn = turns.take(b"call").await.unwrap();
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        assert!(order.lock().unwrap().is_empty());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_is_passed_over_and_other_calls_do_not_wait() {
        let turns = Arc::new(Turns::default());
        let first = turns.take(b"call").await.unwrap();
        let waiting = {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take(b"call").await.is_some() })
        };
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert!(turns.take(b"other").await.is_some());
        drop(first);
        assert!(turns.take(b"call").await.is_some());
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn the_queue_of_one_call_is_bounded() {
        let turns = Arc::new(Turns::default());
        let first = turns.take(b"call").await.unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..MOST_WAITING + 5 {
            let (turns, served) = (Arc::clone(&turns), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                if turns.take(b"call").await.is_some() {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        while turns.lock().values().all(|queue| queue.len() < MOST_WAITING) {
            tokio::task::yield_now().await;
        }
        for _ in 0..MOST_WAITING {
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(served.load(Ordering::Relaxed), MOST_WAITING);
    }
}
