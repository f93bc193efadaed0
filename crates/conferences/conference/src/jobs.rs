//! Jobs of mixers for a conference. Each job runs on one mixer.

use crate::adaptation::Medium;
use crate::tables::Name;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// A mix of audio for each participant that gets one.
    Mixes,
    /// The tiled streams for receivers.
    Tiles,
    /// A column of tiles, which becomes part of the tiled streams.
    Column(u16),
}

impl Job {
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::Mixes => Medium::Audio,
            Self::Tiles | Self::Column(_) => Medium::Video,
        }
    }

    /// Returns the reserved participant name of a job's mixer.
    #[must_use]
    pub fn participant(self) -> Name {
        match self {
            Self::Mixes => "#mixer".into(),
            Self::Tiles => "#tiles".into(),
            Self::Column(number) => format!("#tiles:{number}").into(),
        }
    }

    /// Returns the mixer's name for a job's resource. No conference name contains a colon.
    #[must_use]
    pub fn resource(self, conference: &str) -> String {
        match self {
            Self::Mixes | Self::Tiles => conference.to_owned(),
            Self::Column(number) => format!("{conference}:{number}"),
        }
    }

    /// Returns the conference and the tiling job of a mixer's resource.
    #[must_use]
    pub fn of_tiling(resource: &str) -> Option<(&str, Self)> {
        match resource.split_once(':') {
            None => Some((resource, Self::Tiles)),
            Some((conference, number)) => Some((conference, Self::Column(number.parse().ok()?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixer_s_resource_tells_the_job() {
        for job in [Job::Tiles, Job::Column(0), Job::Column(15)] {
            assert_eq!(Job::of_tiling(&job.resource("hall-1")), Some(("hall-1", job)));
        }
        assert_eq!(Job::of_tiling("hall:one"), None);
    }
}
