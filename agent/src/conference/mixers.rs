//! Tells mixers what the book says, and asks them how they are.

use super::Conferences;
use super::mixer_client as client;
use shunt_conference::adaptation::Medium;
use shunt_conference::book::{Book, MixerWork, Placing};
use shunt_rtpproxy::framing::ControlAddress;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Between two looks at mixers.
const LOOK: Duration = Duration::from_millis(500);
/// Changes that come together are told together.
const COALESCE: Duration = Duration::from_millis(20);

impl Conferences {
    fn mixer(&self, control: &str) -> Option<&ControlAddress> {
        self.mixers.iter().find(|one| one.to_string() == control)
    }

    /// For ever: place conferences on mixers, and tell these what they have to know.
    pub async fn mix(&self) {
        let mut looked: Option<Instant> = None;
        loop {
            let due = looked.map_or(Duration::ZERO, |looked| LOOK.saturating_sub(looked.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(due) => {
                    self.look_at_mixers().await;
                    looked = Some(Instant::now());
                }
                () = self.mixing.notified() => tokio::time::sleep(COALESCE).await,
            }
            if !self.look(Book::is_up) {
                // Without a data plane nothing arrives, and another agent may be in charge.
                continue;
            }
            for (control, job, conference) in self.decide(|book, _| book.ended_works()) {
                let Some(address) = self.mixer(&control) else { continue };
                if client::end(address, job, &conference).await.is_err() {
                    self.decide(|book, _| book.not_ended(control, job, conference));
                }
            }
            for work in self.decide(|book, turn| book.mixer_works(turn)) {
                match work {
                    MixerWork::Place(placing) => self.place(placing).await,
                    MixerWork::Tell {
                        conference,
                        job,
                        control,
                        description,
                    } => {
                        let Some(address) = self.mixer(&control) else { continue };
                        let answer = client::describe(address, job, &conference, &description).await;
                        self.decide(|book, turn| book.told(turn, &conference, job, &control, description, answer));
                    }
                }
            }
        }
    }

    /// Ask all mixers how they are, and those that have something what they make of it.
    async fn look_at_mixers(&self) {
        let mut asked = JoinSet::new();
        let used = self.look(Book::used_mixers);
        for control in self.mixers.clone() {
            let makes = |medium: Medium| used.contains(&(control.to_string(), medium));
            let (mixes, tiles) = (makes(Medium::Audio), makes(Medium::Video));
            asked.spawn(async move {
                let status = client::status(&control).await;
                let (mut listing, mut tilings) = (None, None);
                if mixes && status.is_ok() {
                    listing = client::listing(&control).await.ok();
                }
                if tiles && status.is_ok() {
                    tilings = client::tilings(&control).await.ok();
                }
                (control.to_string(), status, listing, tilings)
            });
        }
        while let Some(answered) = asked.join_next().await {
            let Ok((control, status, listing, tilings)) = answered else {
                continue;
            };
            let leaving = self.decide(|book, turn| {
                book.mixer_status(turn, &control, status);
                if let Some(tilings) = tilings {
                    book.tiled(turn, &control, tilings);
                }
                listing.map(|listing| book.reported(turn, &control, listing)).unwrap_or_default()
            });
            for (conference, participant) in leaving {
                // It may have left just now.
                let _ = self.leave(&conference, &participant, "keys").await;
            }
        }
    }

    /// Place a job on the mixer that has the least to do, among those that take it.
    async fn place(&self, placing: Placing) {
        let mut reason = String::new();
        for control in self.look(|book| book.candidates(placing.job.medium())) {
            let Some(address) = self.mixer(&control) else { continue };
            match client::describe(address, placing.job, &placing.conference, &placing.description).await {
                Ok(accepted) => {
                    self.decide(|book, turn| book.placed(turn, placing, control, &accepted));
                    return;
                }
                Err(error) => {
                    self.decide(|book, turn| book.declined(turn, &placing.conference, &control, &error));
                    reason = error.to_string();
                }
            }
        }
        self.decide(|book, _| book.not_placed(&placing, reason));
    }
}
