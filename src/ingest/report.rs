//! What is counted and logged when a submission is stored.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::Reading;
use crate::provider::Source;
use crate::telemetry;

use super::{Fate, Receipt, Submission};

/// What is to be said of a submission, whose items are gone when it is stored.
#[derive(Debug)]
pub(crate) struct Report {
    source: Arc<Source>,
    correlation_id: Uuid,
    /// Why items cannot be read.
    unreadable: Vec<&'static str>,
}

impl Report {
    pub(crate) fn of(submission: &Submission) -> Self {
        let unreadable = submission
            .items
            .iter()
            .filter_map(|item| match item.reading {
                Reading::Unreadable(reason) => Some(reason),
                Reading::Event | Reading::Ignored(_) => None,
            });
        Self {
            source: Arc::clone(&submission.source),
            correlation_id: submission.request.correlation_id,
            unreadable: unreadable.collect(),
        }
    }

    pub(crate) fn stored(&self, receipt: &Receipt) {
        let source = self.source.name.as_str();
        let of = |fate: Fate| receipt.items.iter().filter(move |(_, f)| *f == fate);
        telemetry::accepted(source, of(Fate::New).count() as u64);
        telemetry::duplicates(source, of(Fate::Duplicate).count() as u64);
        let conflicts = of(Fate::Conflict).count() as u64;
        if conflicts > 0 {
            telemetry::conflicts(source, conflicts);
        }
        for (event_id, _) in of(Fate::Conflict) {
            tracing::error!(source, event.id = %event_id, "conflict: other content under a known key; recorded, not processed");
        }
        for reason in &self.unreadable {
            telemetry::unreadable(source);
            tracing::error!(source, reason, correlation_id = %self.correlation_id, "a verified event cannot be read; it is kept whole");
        }
    }
}
