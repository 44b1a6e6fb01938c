//! `GET /v1/events/{source}/{key}/wait`: the timeline of an event once nothing of it is under way.

use std::time::Duration;

use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use tokio::time::Instant;

use crate::domain::operation::Preferences;
use crate::engine::{Engine, Waited};

use super::events::{self, NO_EVENT};

/// How long a request waits that does not say.
const USUAL: Duration = Duration::from_secs(5);
/// Longest wait.
const LONGEST: Duration = Duration::from_mins(1);

/// 200 and the timeline when the event has ended, 202 and the timeline when it has not in time.
/// `Prefer: wait=n` says how long.
pub(super) async fn wait(
    request: HttpRequest,
    path: web::Path<(String, String)>,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let (source, key) = path.into_inner();
    if !events::may_exist(&source, &key) {
        return NO_EVENT.response();
    }
    let fields = request.headers().get_all("Prefer");
    let patience = Preferences::of_fields(fields.map(HeaderValue::as_bytes)).within(USUAL, LONGEST);
    let until = Instant::now() + patience.wait;
    let store = engine.store();
    let event_id = match store.find(&source, &key).await {
        Ok(found) => found.event_id,
        Err(error) => return events::failed(&error),
    };
    let ended = engine.wait_for(event_id, until).await == Waited::Ended;
    let timeline = match store.timeline(&source, &key).await {
        Ok(timeline) => timeline,
        Err(error) => return events::failed(&error),
    };
    let mut answer = if ended {
        HttpResponse::Ok()
    } else {
        let mut accepted = HttpResponse::Accepted();
        accepted.insert_header((header::RETRY_AFTER, "1"));
        accepted
    };
    if let Some(applied) = patience.applied {
        answer.insert_header(("Preference-Applied", applied));
    }
    answer
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .json(timeline)
}
