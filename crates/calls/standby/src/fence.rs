//! The fence in front of a data plane: an agent writes nothing while another one may be active.
//!
//! Two mechanisms keep two agents from writing. The lease: at any time at most one agent has it. The binding: a BF Runtime server lets one
//! client at a time own the program, and an agent binds only with the lease. While the store is down, no agent can be granted the lease. An
//! agent whose binding has not been interrupted since it had the lease may then continue, because no other agent can have bound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use thiserror::Error;
use tokio::sync::watch;

/// The right to send one request that changes tables. Only a [`Fence`] issues it.
#[derive(Debug)]
#[must_use]
pub struct Pass(());

/// Requests that change tables are not allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("another agent may be in charge")]
pub struct Fenced;

#[derive(Clone, Copy, Debug)]
enum Permission {
    /// No other agent shares these tables.
    Alone,
    None,
    Lease {
        until: Instant,
        undecided: bool,
    },
}

#[derive(Debug)]
struct State {
    permission: Permission,
    /// The data plane accepted the binding while this agent had the lease, and the binding still exists.
    anchored: bool,
    /// Another client owns the program.
    rival: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    is_open: watch::Sender<bool>,
    refused: AtomicU64,
}

/// Tells whether writing is allowed now. Clones share the state.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Shared>);

impl Fence {
    fn new(permission: Permission) -> Self {
        let is_open = watch::Sender::new(matches!(permission, Permission::Alone));
        let state = State {
            permission,
            anchored: false,
            rival: false,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            is_open,
            refused: AtomicU64::new(0),
        }))
    }

    /// For an agent that belongs to no group.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Permission::Alone)
    }

    /// Closed until the agent has the lease.
    #[must_use]
    pub fn closed() -> Self {
        Self::new(Permission::None)
    }

    fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The agent has the lease until the given time. `undecided`: the store does not tell what follows.
    pub fn hold(&self, until: Instant, undecided: bool) {
        self.with(|state| state.permission = Permission::Lease { until, undecided });
        self.0.is_open.send_replace(true);
    }

    /// Another agent has the lease.
    pub fn close(&self) {
        self.with(|state| state.permission = Permission::None);
        self.0.is_open.send_replace(false);
    }

    /// Waits until the fence opens for the first time.
    pub async fn opened(&self) {
        let mut open = self.0.is_open.subscribe();
        // The sender lives as long as this.
        let _ = open.wait_for(|open| *open).await;
    }

    /// Returns the right to send one request.
    ///
    /// # Errors
    /// Another agent may be active.
    pub fn pass(&self, now: Instant) -> Result<Pass, Fenced> {
        let allowed = self.with(|state| match state.permission {
            Permission::Alone => true,
            Permission::None => false,
            Permission::Lease { until, undecided } => now < until || (undecided && state.anchored),
        });
        if allowed {
            return Ok(Pass(()));
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Err(Fenced)
    }

    /// Whether, by the clock alone, no other agent can be active.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        self.with(|state| match state.permission {
            Permission::Alone => true,
            Permission::None => false,
            Permission::Lease { until, .. } => now < until,
        })
    }

    /// Whether this agent may answer for the group: it has the lease, or no agent can be granted the lease.
    #[must_use]
    pub fn is_in_charge(&self, now: Instant) -> bool {
        self.with(|state| match state.permission {
            Permission::Alone => true,
            Permission::None => false,
            Permission::Lease { until, undecided } => now < until || undecided,
        })
    }

    /// The data plane accepted this agent's binding.
    pub fn bound(&self, now: Instant) {
        self.with(|state| {
            state.rival = false;
            state.anchored = matches!(state.permission, Permission::Lease { until, .. } if now < until);
        });
    }

    /// There is no binding (any more). `rival`: because another client has it.
    pub fn unbound(&self, rival: bool) {
        self.with(|state| (state.anchored, state.rival) = (false, rival));
    }

    /// Whether another client owned the program when this one last tried to bind.
    #[must_use]
    pub fn has_rival(&self) -> bool {
        self.with(|state| state.rival)
    }

    /// Number of rejected requests.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_passes_before_the_lease_and_after_it() {
        let (fence, now) = (Fence::closed(), Instant::now());
        assert!(fence.pass(now).is_err());
        fence.hold(now + SECOND, false);
        assert!(fence.pass(now).is_ok() && fence.is_in_charge(now));
        fence.bound(now);
        assert!(fence.pass(now + SECOND).is_err() && !fence.is_in_charge(now + SECOND));
        fence.close();
        assert!(fence.pass(now).is_err());
        assert_eq!(fence.refused(), 3);
    }

    #[test]
    fn an_agent_that_stays_bound_goes_on_while_nobody_can_be_granted_the_lease() {
        let (fence, now) = (Fence::closed(), Instant::now());
        let late = now + 2 * SECOND;
        fence.hold(now + SECOND, true);
        assert!(fence.pass(late).is_err(), "it was never bound");
        fence.bound(now);
        assert!(fence.pass(late).is_ok());
        fence.unbound(false);
        assert!(fence.pass(late).is_err(), "somebody else may have bound since");
        fence.bound(late);
        assert!(fence.pass(late).is_err(), "bound without the lease");
        assert!(fence.is_in_charge(late));
    }

    #[test]
    fn an_agent_that_stands_alone_needs_no_lease() {
        let fence = Fence::alone();
        fence.unbound(true);
        assert!(fence.pass(Instant::now()).is_ok() && fence.has_rival());
    }
}
