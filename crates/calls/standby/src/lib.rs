//! Active and standby: which agent of a group is active, and how the others know that it no longer is.
//!
//! A store grants a [`Lease`] for a short time together with a fencing token, a number that only grows. The holder renews it four times per
//! period. Requests to the store, answers and the time come from outside. The lease opens a [`Fence`]: each request that writes to a data
//! plane needs a [`Pass`], which the fence issues only while no other agent can be active.
#![forbid(unsafe_code)]

mod fence;
mod holder;
mod lease;

pub use fence::{Fence, Fenced, Pass};
pub use holder::Holder;
pub use lease::{Answer, Ask, Change, Lease, Standing, UNDECIDED, WriteAgain};
