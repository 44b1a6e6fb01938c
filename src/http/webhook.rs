//! `POST /webhooks/{source}`: the path of one webhook, as a table of contents.
//!
//! Every refusal passes [`Engine::reject`](crate::engine::Engine::reject) on its way out, so that
//! "refused" and "nothing arrived" never look the same.

use std::time::Instant;

use actix_web::http::ConnectionType;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use jiff::Timestamp;
use tracing::Instrument;
use uuid::Uuid;

use crate::domain::{Digest, Refusal};
use crate::engine::{ActiveSource, Rejection};
use crate::ingest::{Origin, Receipt, StoredRequest, Submission};
use crate::provider::{self, Verified};
use crate::telemetry;

use super::body::{self, Cause, Stopped};
use super::inbox::Inbox;
use super::problem::Problem;
use super::{answer, early, incoming};

/// Names the request in the log, in `request` and in the answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("oncehook-request-id");

/// Takes any method and any address under the prefix: whatever comes gets a problem body, never
/// a redirect.
pub(super) async fn receive(
    request: HttpRequest,
    payload: web::Payload,
    inbox: web::Data<Inbox>,
) -> HttpResponse {
    let started = Instant::now();
    let correlation_id = Uuid::new_v4();
    let span = tracing::info_span!("webhook", correlation_id = %correlation_id);
    let visit = Visit {
        inbox: &inbox,
        request: &request,
        active: active_source(&inbox, &request),
        correlation_id,
    };
    let mut response = visit.answer(payload).instrument(span).await;
    visit.measure(response.status(), started);
    if let Ok(id) = HeaderValue::from_str(&correlation_id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn active_source(inbox: &Inbox, request: &HttpRequest) -> Option<ActiveSource> {
    let name = request.match_info().get("source")?;
    inbox.engine.source(name)
}

/// One request and what is known of it so far.
struct Visit<'a> {
    inbox: &'a Inbox,
    request: &'a HttpRequest,
    active: Option<ActiveSource>,
    correlation_id: Uuid,
}

impl Visit<'_> {
    async fn answer(&self, mut payload: web::Payload) -> HttpResponse {
        let active = match self.address() {
            Ok(active) => active,
            Err(refusal) => return early::without_reading(self.refuse(refusal, None, 0), payload),
        };
        match self.collect(&mut payload).await {
            Ok(body) => self.take(active, body).await,
            Err(stopped) => early::without_reading(self.stop(stopped), payload),
        }
    }

    /// What can be refused before the body is read.
    fn address(&self) -> Result<&ActiveSource, Refusal> {
        let active = self.active.as_ref().ok_or(Refusal::UnknownSource)?;
        if self.request.method() != Method::POST {
            return Err(Refusal::MethodNotAllowed);
        }
        if incoming::head_bytes(self.request) > self.inbox.limits.header_bytes {
            return Err(Refusal::HeadersTooLarge);
        }
        Ok(active)
    }

    async fn collect(&self, payload: &mut web::Payload) -> Result<body::Body, Stopped> {
        let limits = &self.inbox.limits;
        body::collect(
            payload,
            incoming::declared_length(self.request),
            limits.body_bytes,
            limits.body_time,
            &self.inbox.budget,
        )
        .await
    }

    /// Verifies, unwraps, stores, answers.
    async fn take(&self, active: &ActiveSource, body: body::Body) -> HttpResponse {
        let source = &active.source;
        let headers = incoming::headers(self.request);
        let request = provider::Request {
            method: self.request.method().as_str(),
            target: incoming::target(self.request),
            headers: &headers,
            body: &body.bytes,
        };
        let verified = match source
            .provider
            .verify(&request, &source.secrets, Timestamp::now())
        {
            Ok(verified) => verified,
            Err(refusal) => return self.refuse_body(refusal, &body.bytes),
        };
        self.reject_items(&verified, &body.bytes);
        let mut items = source.provider.unwrap(&request, &verified);
        source.apply_modes(&mut items);
        let refused = verified.refused_items.first().map(|(_, refusal)| *refusal);
        let submission = Submission {
            source_id: active.id,
            source: source.clone(),
            request: self.stored(&headers, verified.secret_label, active, body),
            items,
            routes: Vec::new(),
            origin: Origin::Request,
        };
        match self.submit(active, submission).await {
            Some(receipt) => answer::to(source, &receipt, refused),
            None => Problem::UNAVAILABLE.response(),
        }
    }

    /// The receipt, or `None` when nothing is durable. A request without items has nothing to
    /// store.
    async fn submit(&self, active: &ActiveSource, submission: Submission) -> Option<Receipt> {
        if submission.items.is_empty() {
            return Some(Receipt { items: Vec::new() });
        }
        let bytes = submission.request.body.len();
        let source = submission.source.name.clone();
        let secret = submission.request.secret_label.clone();
        match self.inbox.engine.submit(active, submission).await {
            Ok(receipt) => {
                let events = receipt.items.len();
                let replayed = answer::is_replay(&receipt);
                tracing::info!(source, secret, bytes, events, replayed, "webhook stored");
                Some(receipt)
            }
            Err(unavailable) => {
                let reason = unavailable.reason;
                tracing::warn!(source, bytes, reason, "webhook not stored, answered 503");
                None
            }
        }
    }

    fn stored(
        &self,
        headers: &provider::Headers,
        secret_label: String,
        active: &ActiveSource,
        body: body::Body,
    ) -> StoredRequest {
        let of_preset = active.source.provider.stored_headers();
        StoredRequest {
            headers: incoming::stored_headers(headers, &of_preset),
            method: self.request.method().as_str().to_owned(),
            path: self.request.path().to_owned(),
            query: incoming::masked_query(self.request.query_string()),
            peer: incoming::peer(self.request),
            secret_label,
            correlation_id: self.correlation_id,
            body: body.release(),
        }
    }

    /// Answers a body that was not read to its end.
    fn stop(&self, stopped: Stopped) -> HttpResponse {
        match stopped.cause {
            Cause::Refused(refusal) => self.refuse(refusal, stopped.digest, stopped.size),
            Cause::NoRoom => {
                let bytes = stopped.size;
                tracing::warn!(bytes, "too many bodies at once, answered 503");
                Problem::UNAVAILABLE.response()
            }
        }
    }

    fn refuse_body(&self, refusal: Refusal, body: &[u8]) -> HttpResponse {
        self.refuse(refusal, Some(Digest::of(body)), body.len() as u64)
    }

    /// Records the refusal and makes its answer.
    fn refuse(&self, refusal: Refusal, digest: Option<Digest>, size: u64) -> HttpResponse {
        self.reject(refusal, digest, size);
        let mut response = match &self.active {
            Some(active) => answer::refusal_answer(active.source.provider.as_ref(), refusal),
            None => Problem::of_refusal(refusal, StatusCode::NOT_FOUND).response(),
        };
        match refusal {
            Refusal::MethodNotAllowed => {
                let post = HeaderValue::from_static("POST");
                response.headers_mut().insert(header::ALLOW, post);
            }
            // Nobody knows where in the stream the next request would begin.
            Refusal::BodyBroken => response
                .head_mut()
                .set_connection_type(ConnectionType::Close),
            _ => {}
        }
        response
    }

    /// Items that failed their own signature: one refusal per reason, however many items a hostile
    /// batch holds.
    fn reject_items(&self, verified: &Verified, body: &[u8]) {
        if verified.refused_items.is_empty() {
            return;
        }
        let digest = Digest::of(body);
        let reasons: std::collections::HashSet<Refusal> = verified
            .refused_items
            .iter()
            .map(|(_, refusal)| *refusal)
            .collect();
        for refusal in reasons {
            self.reject(refusal, Some(digest), body.len() as u64);
        }
    }

    fn reject(&self, refusal: Refusal, digest: Option<Digest>, size: u64) {
        self.inbox.engine.reject(&Rejection {
            source: self.active.clone(),
            refusal,
            digest,
            size,
            peer: incoming::peer(self.request),
        });
    }

    /// Only registered names become labels, so that strangers cannot make series.
    fn measure(&self, status: StatusCode, started: Instant) {
        let source = self
            .active
            .as_ref()
            .map(|active| active.source.name.as_str());
        telemetry::responded(source, status.as_u16(), started.elapsed());
    }
}
