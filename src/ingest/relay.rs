//! From an emitted event to a stored one, by the path that every event takes.
//!
//! `oncehook.emit` writes into `emitted` inside somebody's transaction: there with the effect, or not
//! at all. Here such rows are taken, fanned out and stored in batches; the transaction that stores
//! them removes them.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use tokio::sync::Notify;

use crate::domain::Routes;
use crate::provider::Source;
use crate::provider::internal::{self, Fields};
use crate::store::outbox::{self, Emitted};
use crate::store::{Store, StoreError};

use super::{Origin, Report, StoredRequest, Submission, batch, routes_of};

/// What the relay needs to know of the current configuration.
#[derive(Debug)]
pub(crate) struct Internals {
    pub(crate) sources: Vec<(i32, Arc<Source>)>,
    pub(crate) routes: Routes,
}

/// Longest time between two looks; wake-ups only shorten it.
const POLL: Duration = Duration::from_millis(500);

/// Stores what was emitted, as long as it runs. `current` gives the configuration of the moment.
pub(crate) async fn run(
    store: Store,
    current: impl Fn() -> Internals,
    emitted: Arc<Notify>,
    stored: Arc<Notify>,
) {
    loop {
        let known = current();
        let full = if known.sources.is_empty() {
            false
        } else {
            match once(&store, &known, &stored).await {
                Ok(full) => full,
                Err(error) => {
                    tracing::warn!(error = %error, "emitted events not stored yet");
                    false
                }
            }
        };
        if !full {
            drop(tokio::time::timeout(POLL, emitted.notified()).await);
        }
    }
}

/// Takes and stores one batch; tells whether more are waiting.
pub(crate) async fn once(
    store: &Store,
    known: &Internals,
    stored: &Notify,
) -> Result<bool, StoreError> {
    let sources: Vec<i32> = known.sources.iter().map(|(id, _)| *id).collect();
    let taken = store.claim_emitted(&sources).await?;
    let full = Store::is_full(&taken);
    let submissions: Vec<Submission> = taken
        .into_iter()
        .filter_map(|emitted| submission(emitted, known))
        .collect();
    if submissions.is_empty() {
        return Ok(full);
    }
    let batch: Vec<&Submission> = submissions.iter().collect();
    let answers = batch::write_within(store, &batch, outbox::STORED_WITHIN).await;
    for (submission, answer) in submissions.iter().zip(&answers) {
        if let Ok(receipt) = answer {
            Report::of(submission).stored(receipt);
        }
    }
    let some = answers.iter().any(Result::is_ok);
    if some {
        stored.notify_one();
    }
    // What was not stored comes again when its lease has ended; until then it is in nobody's way.
    Ok(full && some)
}

fn submission(emitted: Emitted, known: &Internals) -> Option<Submission> {
    let (source_id, source) = known
        .sources
        .iter()
        .find(|(id, _)| *id == emitted.source_id)?;
    let fields = Fields {
        key: emitted.key,
        event_type: emitted.event_type,
        entity: emitted.entity,
        occurred_at: emitted.occurred_at,
    };
    let item = internal::item(fields, &emitted.body);
    let mut submission = Submission {
        source_id: *source_id,
        source: Arc::clone(source),
        request: StoredRequest {
            body: Bytes::from(emitted.body),
            headers: b"[]".to_vec(),
            method: "EMIT".to_owned(),
            path: String::new(),
            query: None,
            peer: None,
            secret_label: internal::NAME.to_owned(),
            correlation_id: emitted.correlation_id,
        },
        items: vec![item],
        routes: Vec::new(),
        origin: Origin::Emitted {
            id: emitted.id,
            caused_by: emitted.caused_by,
        },
    };
    submission.routes = routes_of(&known.routes, &submission, None);
    Some(submission)
}
