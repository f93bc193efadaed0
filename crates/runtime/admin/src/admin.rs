//! What the server asks of the agent.

use shunt_admin_model::{
    Announcements, Audit, CallFilter, CallPage, CallView, CaptureFilter, CaptureLine, Conference, ConferenceSummary, DrainStatus, Estimate,
    Failure, Join, LogFilter, Participant, ParticipantUpdate, QualityChange, Status, StopOf, TargetChange, Text, Tiling, TilingWish, Trace,
};
use shunt_net::Endpoint;
use std::future::{Future, ready};
use tokio::sync::{broadcast, mpsc};

type Answer<T> = Result<T, Failure>;

/// The agent, as the API shows it. Every method may wait for the agent's loop or the data plane; the server gives up after
/// [`crate::ServerSettings::timeout`].
pub trait Admin: Send + Sync + 'static {
    fn status(&self) -> impl Future<Output = Answer<Status>> + Send;

    /// The calls that fit, the oldest first, with the counters at hand. `filter.limit` is 1 to 1,000.
    fn calls(&self, filter: CallFilter) -> impl Future<Output = Answer<CallPage>> + Send;

    /// One call. With `fresh`, counters are read from the data plane now; where that fails, those at hand are given with the error.
    fn call(&self, call: Text, fresh: bool) -> impl Future<Output = Answer<CallView>> + Send;

    /// Remove a call's entries and end its sessions on the relay, as a D of the SIP server does.
    fn release(&self, call: Text) -> impl Future<Output = Answer<()>> + Send;

    fn trace(&self, source: Endpoint, destination: Endpoint) -> impl Future<Output = Answer<Trace>> + Send;

    /// `None`: end draining. `group`: it goes on where another agent of the group takes over.
    fn drain(&self, stop: Option<StopOf>, group: bool) -> impl Future<Output = Answer<DrainStatus>> + Send;

    fn drain_status(&self) -> impl Future<Output = Answer<DrainStatus>> + Send;

    /// Compare the relay table with the plan now.
    fn audit(&self) -> impl Future<Output = Answer<Audit>> + Send;

    fn log_filter(&self) -> impl Future<Output = Answer<LogFilter>> + Send;

    fn set_log_filter(&self, filter: LogFilter) -> impl Future<Output = Answer<LogFilter>> + Send;

    /// The calls that fit and their SIP, as they change. The capture lasts until the receiver is dropped. `client`: for log and events.
    fn capture(&self, filter: CaptureFilter, client: String) -> impl Future<Output = Answer<mpsc::Receiver<CaptureLine>>> + Send;

    /// Bring gauges of the metrics registry up to date, before it is written.
    fn refresh_metrics(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn conferences(&self) -> impl Future<Output = Answer<Vec<ConferenceSummary>>> + Send {
        ready(Err(Failure::no_conferences()))
    }

    fn create_conference(&self, conference: Text) -> impl Future<Output = Answer<ConferenceSummary>> + Send {
        let _ = conference;
        ready(Err(Failure::no_conferences()))
    }

    fn conference(&self, conference: Text) -> impl Future<Output = Answer<Conference>> + Send {
        let _ = conference;
        ready(Err(Failure::no_conferences()))
    }

    fn end_conference(&self, conference: Text) -> impl Future<Output = Answer<()>> + Send {
        let _ = conference;
        ready(Err(Failure::no_conferences()))
    }

    fn join(&self, conference: Text, join: Join) -> impl Future<Output = Answer<Participant>> + Send {
        let _ = (conference, join);
        ready(Err(Failure::no_conferences()))
    }

    fn update_participant(
        &self,
        conference: Text,
        participant: Text,
        update: ParticipantUpdate,
    ) -> impl Future<Output = Answer<Participant>> + Send {
        let _ = (conference, participant, update);
        ready(Err(Failure::no_conferences()))
    }

    /// `reason` is for the record: `bye`, `removed`, `no-ack`, `cancelled`.
    fn leave(&self, conference: Text, participant: Text, reason: String) -> impl Future<Output = Answer<()>> + Send {
        let _ = (conference, participant, reason);
        ready(Err(Failure::no_conferences()))
    }

    fn set_quality(&self, conference: Text, change: QualityChange) -> impl Future<Output = Answer<()>> + Send {
        let _ = (conference, change);
        ready(Err(Failure::no_conferences()))
    }

    fn set_targets(&self, conference: Text, change: TargetChange) -> impl Future<Output = Answer<()>> + Send {
        let _ = (conference, change);
        ready(Err(Failure::no_conferences()))
    }

    fn set_tiling(&self, conference: Text, wish: TilingWish) -> impl Future<Output = Answer<Tiling>> + Send {
        let _ = (conference, wish);
        ready(Err(Failure::no_conferences()))
    }

    /// Whether those who get a mix hear who joins and who leaves.
    fn set_announcements(&self, conference: Text, wish: Announcements) -> impl Future<Output = Answer<()>> + Send {
        let _ = (conference, wish);
        ready(Err(Failure::no_conferences()))
    }

    fn end_tiling(&self, conference: Text) -> impl Future<Output = Answer<()>> + Send {
        let _ = conference;
        ready(Err(Failure::no_conferences()))
    }

    /// Estimates as they come, for a policy outside of the agent.
    fn estimates(&self) -> impl Future<Output = Answer<broadcast::Receiver<Estimate>>> + Send {
        ready(Err(Failure::no_conferences()))
    }
}
