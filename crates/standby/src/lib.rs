//! Active and standby: which agent of a group is in charge, and how the others know that it no longer is.
//!
//! A store grants a [`Lease`] for a short time together with a fencing token, a number that only grows. Its holder renews it four times as
//! often as it must. Questions to the store, their answers and the time come in from outside. A [`Fence`] is what the lease opens: who writes to
//! a data plane needs a [`Pass`] for each request, and gets one only while no other agent can be in charge.
#![forbid(unsafe_code)]

mod fence;
mod holder;
mod lease;

pub use fence::{Fence, Fenced, Pass};
pub use holder::Holder;
pub use lease::{Answer, Ask, Change, Lease, Standing, UNDECIDED, WriteAgain};
