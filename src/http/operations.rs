//! `POST /v1/operations/{operation}`: one intent of a client, from its key to its answer.
//!
//! What is refused before the reservation leaves nothing behind: unknown operation, key, type, size, shape.
//! From the reservation on the answer table of `domain::operation` decides.

use std::time::Duration;

use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::domain::json::Document;
use crate::domain::operation::{
    Action, Asked, IdempotencyKey, KeyFault, Patience, Preferences, Profile, Record, Response,
    Saying, Seen, State, decide, safe_key,
};
use crate::domain::{Caller, EventKey};
use crate::engine::{ActiveOperation, Engine, Reserved, Waited};
use crate::ingest::StoredRequest;
use crate::telemetry;

use super::body::{self, Budget};
use super::inbox::Limits;
use super::operation_status::{self as status, Status};
use super::problem::Problem;
use super::{early, events, incoming};

const KEY: &str = "Idempotency-Key";
const PREFER: &str = "Prefer";
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const REQUEST_ID: HeaderName = HeaderName::from_static("oncehook-request-id");

/// What a request of the API listener may cost.
#[derive(Debug)]
pub(super) struct Desk {
    limits: Limits,
    budget: Budget,
}

impl Desk {
    pub(super) fn new(limits: Limits) -> Self {
        let budget = Budget::new(limits.reading_bytes.max(limits.body_bytes));
        Self { limits, budget }
    }
}

/// Registers `/v1/operations` and what is below it.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/v1/operations")
                .route(web::get().to(status::list))
                .default_service(web::to(events::only_get)),
        )
        .service(
            web::resource("/v1/operations/{operation}/keys/{key:.+}")
                .route(web::get().to(status::by_key))
                .default_service(web::to(events::only_get)),
        )
        .service(
            web::resource("/v1/operations/{operation}")
                .route(web::get().to(status::by_id))
                .route(web::post().to(submit))
                .default_service(web::to(get_or_post)),
        );
}

async fn get_or_post(_request: HttpRequest, payload: web::Payload) -> HttpResponse {
    early::without_reading(events::method_not_allowed("GET, POST"), payload)
}

async fn submit(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<String>,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
    desk: web::Data<Desk>,
) -> HttpResponse {
    let Some(operation) = engine.operation(&path) else {
        return early::without_reading(UNKNOWN.response(), payload);
    };
    let correlation_id = Uuid::new_v4();
    let span = tracing::info_span!("operation", correlation_id = %correlation_id);
    let visit = Visit {
        engine: &engine,
        operation: &operation,
        correlation_id,
        began: Instant::now(),
    };
    let taken = visit.take(&desk, &caller, &request, &mut payload);
    let (mut answer, word) = match taken.instrument(span.clone()).await {
        Ok(intent) => {
            let (mut answer, word) = visit.answer(&intent).instrument(span).await;
            if let Some(applied) = header_value(intent.patience.applied.as_deref()) {
                answer.headers_mut().insert(APPLIED, applied);
            }
            (answer, word)
        }
        Err(Refused { answer, word }) => (early::without_reading(answer, payload), word),
    };
    telemetry::operation_answered(operation.name(), word, visit.began.elapsed());
    if let Some(id) = header_value(Some(&correlation_id.to_string())) {
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    answer
}

/// An answer that leaves nothing behind, and what it is counted as.
struct Refused {
    answer: HttpResponse,
    word: &'static str,
}

impl Refused {
    fn because(problem: &Problem) -> Self {
        Self::with(problem.response())
    }

    fn with(answer: HttpResponse) -> Self {
        let word = match answer.status() {
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            _ => "refused",
        };
        Self { answer, word }
    }
}

/// An intent that has its key.
struct Intent {
    client: String,
    key: IdempotencyKey,
    event_key: EventKey,
    patience: Patience,
    reserved: Reserved,
}

/// One request and what is known of it so far.
struct Visit<'a> {
    engine: &'a Engine,
    operation: &'a ActiveOperation,
    correlation_id: Uuid,
    began: Instant,
}

impl Visit<'_> {
    /// Reads the request and reserves its key. Nothing of it is held afterwards.
    async fn take(
        &self,
        desk: &Desk,
        caller: &Caller,
        request: &HttpRequest,
        payload: &mut web::Payload,
    ) -> Result<Intent, Refused> {
        let key = fields(request, KEY);
        let key =
            IdempotencyKey::of_fields(key).map_err(|fault| Refused::because(&no_key(fault)))?;
        let event_key = key
            .event_key(caller.name())
            .map_err(|_| Refused::because(&no_key(KeyFault::TooLong)))?;
        if !is_json(request) {
            return Err(Refused::because(&NOT_JSON_TYPE));
        }
        if incoming::head_bytes(request) > desk.limits.header_bytes {
            return Err(Refused::because(&HEAD_TOO_LARGE));
        }
        let body = body::collect(
            payload,
            incoming::declared_length(request),
            desk.limits.body_bytes,
            desk.limits.body_time,
            &desk.budget,
        )
        .await
        .map_err(|stopped| Refused::with(events::stopped_answer(stopped.cause)))?;
        shape(&body.bytes).map_err(|problem| Refused::because(&problem))?;
        let patience = Preferences::of_fields(fields(request, PREFER)).at(&self.operation.spec);
        let stored = self.stored(request, body);
        let reserved = self
            .engine
            .reserve(self.operation, caller.name(), &key, stored)
            .await
            .map_err(|_| Refused::because(&NOT_RESERVED))?;
        Ok(Intent {
            client: caller.name().to_owned(),
            key,
            event_key,
            patience,
            reserved,
        })
    }

    fn stored(&self, request: &HttpRequest, body: body::Body) -> StoredRequest {
        StoredRequest {
            headers: incoming::stored_headers(&incoming::headers(request), &[]),
            method: Method::POST.as_str().to_owned(),
            path: request.path().to_owned(),
            query: incoming::masked_query(request.query_string()),
            peer: incoming::peer(request),
            secret_label: String::new(),
            correlation_id: self.correlation_id,
            body: body.release(),
        }
    }

    /// What the table says, and what it is counted as.
    async fn answer(&self, intent: &Intent) -> (HttpResponse, &'static str) {
        let until = Instant::now() + intent.patience.wait;
        let Reserved { event_id, seen } = intent.reserved;
        let mut asked = Asked {
            seen,
            began: (seen == Seen::New).then_some(1),
            time_left: !intent.patience.wait.is_zero(),
            may_begin: true,
        };
        // Of what was reserved a moment ago nothing can be known yet.
        let mut unread = seen == Seen::New && asked.time_left;
        loop {
            let record = if unread || seen == Seen::Other {
                None
            } else {
                let read = self
                    .engine
                    .operation_record(self.operation, &intent.event_key);
                match read.await {
                    Ok(record) => record,
                    Err(_) => return self.say(intent, Saying::Unavailable, None),
                }
            };
            let action = if std::mem::take(&mut unread) {
                Action::Wait
            } else {
                decide(asked, record.as_ref(), &self.operation.spec)
            };
            match action {
                Action::Say(saying) => return self.say(intent, saying, record),
                Action::Wait => {
                    // The key may have been renewed since: what is waited for is what it names now.
                    let event = record.map_or(event_id, |record| record.id);
                    asked.time_left = self.engine.wait_for(event, until).await == Waited::Ended;
                }
                Action::BeginAgain { run } => {
                    asked.may_begin = false;
                    let event = record.map_or(event_id, |record| record.id);
                    let begun = self.engine.begin_again(self.operation, event, run).await;
                    match begun {
                        Ok(true) => asked.began = Some(run + 1),
                        // Somebody was quicker, or a rule forbids it: what is stored is the answer.
                        Ok(false) => {}
                        Err(error) => {
                            tracing::warn!(error = %error, "an operation was not begun again");
                            return self.say(intent, Saying::Unavailable, None);
                        }
                    }
                }
            }
        }
    }

    fn say(
        &self,
        intent: &Intent,
        saying: Saying,
        record: Option<Record>,
    ) -> (HttpResponse, &'static str) {
        let word = word(saying);
        self.log(intent, word, record.as_ref());
        let answer = match (saying, record) {
            (Saying::Mismatch, _) => {
                telemetry::operation_conflict(self.operation.name());
                mismatch(self.operation.spec.profile).response()
            }
            (Saying::InProgress, record) => {
                let mut answer = IN_PROGRESS.response();
                self.point(&mut answer, intent, record.as_ref());
                answer
            }
            (Saying::Accepted, Some(record)) => self.accepted(intent, &record),
            (Saying::Expired, Some(record)) => {
                expired(record.state, ended_word(&record)).response()
            }
            (
                Saying::Stored { replayed },
                Some(Record {
                    stored: crate::domain::operation::Stored::Kept(response),
                    ..
                }),
            ) => stored(response, replayed),
            _ => NOT_READ.response(),
        };
        (answer, word)
    }

    /// 202: where to ask, and when.
    fn accepted(&self, intent: &Intent, record: &Record) -> HttpResponse {
        let status = Status::of(
            self.operation.name(),
            &intent.client,
            intent.key.as_str(),
            record,
        );
        let mut answer = HttpResponse::Accepted()
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .json(status.for_client());
        self.point(&mut answer, intent, Some(record));
        answer
    }

    /// Where to ask, and when.
    fn point(&self, answer: &mut HttpResponse, intent: &Intent, record: Option<&Record>) {
        let at = status::location(self.operation.name(), intent.key.as_str());
        if let Some(at) = header_value(Some(&at)) {
            answer.headers_mut().insert(header::LOCATION, at);
        }
        let after = HeaderValue::from(retry_after_s(record));
        answer.headers_mut().insert(header::RETRY_AFTER, after);
    }

    fn log(&self, intent: &Intent, answer: &'static str, record: Option<&Record>) {
        let operation = self.operation.name();
        tracing::info!(
            operation,
            client = intent.client,
            key.hash = safe_key(operation, &intent.event_key),
            event.id = %intent.reserved.event_id,
            answer,
            state = record.map(|record| record.state.as_str()),
            first.correlation_id = record.map(|record| tracing::field::display(record.correlation_id)),
            external_id = record.and_then(|r| r.external_id.as_deref()).map(|id| telemetry::clean(id).into_owned()),
            waited_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "operation answered"
        );
    }
}

/// What an answer is counted as.
fn word(saying: Saying) -> &'static str {
    match saying {
        Saying::Mismatch => "mismatch",
        Saying::InProgress => "in_progress",
        Saying::Accepted => "accepted",
        Saying::Stored { replayed: false } => "first",
        Saying::Stored { replayed: true } => "replayed",
        Saying::Expired => "expired",
        Saying::Unavailable => "unavailable",
    }
}

fn fields<'a>(request: &'a HttpRequest, name: &str) -> impl Iterator<Item = &'a [u8]> {
    request.headers().get_all(name).map(HeaderValue::as_bytes)
}

/// A browser sends other types across origins without asking, these it does not.
fn is_json(request: &HttpRequest) -> bool {
    let value = request.headers().get(header::CONTENT_TYPE);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|essence| essence.trim().to_ascii_lowercase())
        .is_some_and(|essence| {
            let suffixed = essence.starts_with("application/") && essence.ends_with("+json");
            essence == "application/json" || suffixed
        })
}

/// Whether the body is one that can be compared with another.
fn shape(body: &[u8]) -> Result<(), Problem> {
    let document = Document::parse(body).map_err(|error| {
        Problem::with(
            StatusCode::BAD_REQUEST,
            "body-not-json",
            "Body not understood",
            format!(
                "An operation takes one JSON text: {}. Nothing was reserved; mend it and send it again.",
                error.reason()
            ),
        )
    })?;
    if document.root().repeats_names() {
        return Err(REPEATED_NAMES);
    }
    Ok(())
}

fn stored(response: Response, replayed: bool) -> HttpResponse {
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::OK);
    let mut answer = HttpResponse::build(status);
    for (name, value) in &response.headers {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        ) {
            answer.append_header((name, value));
        }
    }
    if replayed {
        answer.insert_header((REPLAYED, "true"));
    }
    answer.insert_header((header::CACHE_CONTROL, "no-store"));
    answer.body(response.body)
}

fn header_value(text: Option<&str>) -> Option<HeaderValue> {
    HeaderValue::from_str(text?).ok()
}

/// Seconds until it is worth asking: the next try or probe, else a minute for what nobody looks at by
/// himself.
fn retry_after_s(record: Option<&Record>) -> u64 {
    const LONGEST: Duration = Duration::from_hours(1);
    let Some(record) = record else { return 1 };
    let Some(at) = record.next_check_at else {
        return match record.state {
            State::Uncertain => 60,
            _ => 1,
        };
    };
    let left = at.duration_since(jiff::Timestamp::now());
    let left = Duration::try_from(left).unwrap_or_default().min(LONGEST);
    left.as_secs().saturating_add(1)
}

fn ended_word(record: &Record) -> Option<&'static str> {
    record.ended.as_ref().map(|ended| ended.ending.as_str())
}

fn no_key(fault: KeyFault) -> Problem {
    let (code, title) = match fault {
        KeyFault::Missing => ("idempotency-key-missing", "Idempotency-Key is missing"),
        _ => (
            "idempotency-key-malformed",
            "Idempotency-Key not understood",
        ),
    };
    let detail = format!("{fault} Nothing was reserved.");
    Problem::with(StatusCode::BAD_REQUEST, code, title, detail)
}

fn mismatch(profile: Profile) -> Problem {
    let status = match profile {
        Profile::Standard => StatusCode::CONFLICT,
        Profile::Ietf => StatusCode::UNPROCESSABLE_ENTITY,
    };
    Problem::fixed(
        status,
        "idempotency-key-mismatch",
        "Key used for another intent",
        "This Idempotency-Key names an earlier request with other content. That one stands as it is, and this one was recorded as a conflict and not carried out. A retry repeats the first content; a correction is a new intent and needs a new key.",
    )
}

fn expired(state: State, result: Option<&'static str>) -> Problem {
    Problem::fixed(
        StatusCode::GONE,
        "idempotency-response-expired",
        "Response not kept any more",
        "This intent has ended, and its response is not kept any more. It was not carried out again. Its final state is in `state`; the status resource says what is known of it.",
    )
    .and("state", state.as_str())
    .and_some("result", result)
}

const UNKNOWN: Problem = Problem::fixed(
    StatusCode::NOT_FOUND,
    "unknown-operation",
    "No such operation",
    "No operation of this name is configured here. [[operation]] in the configuration makes one.",
);

const NOT_JSON_TYPE: Problem = Problem::fixed(
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "not-json",
    "Operations are JSON",
    "Send Content-Type: application/json and one JSON text. Nothing was reserved.",
);

const HEAD_TOO_LARGE: Problem = Problem::fixed(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "headers-too-large",
    "Headers too large",
    "Request line and header fields are longer than limits.headers allows. Nothing was reserved.",
);

const REPEATED_NAMES: Problem = Problem::fixed(
    StatusCode::BAD_REQUEST,
    "body-repeats-names",
    "A member name twice",
    "An object of the body has two members of one name, and which of them counts is for nobody to guess. Nothing was reserved; mend it and send it again.",
);

const IN_PROGRESS: Problem = Problem::fixed(
    StatusCode::CONFLICT,
    "idempotency-in-progress",
    "Under way",
    "Another request with this Idempotency-Key has begun the same intent, and it is under way. Send the same again later, with the same key; Location says where to ask for its state.",
);

const NOT_RESERVED: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "reserve-unavailable",
    "Not reserved",
    "The key could not be reserved, or nobody knows whether it was. Send the same again, with the same key: it is carried out once at most.",
);

const NOT_READ: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "reserve-unavailable",
    "State not known now",
    "The intent may be stored, and its state could not be read now. Send the same again, with the same key: it is carried out once at most.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_json_text_without_repeated_names() {
        for body in ["{}", " [1, 2] ", "\"x\"", r#"{"a":{"b":1},"b":1}"#] {
            assert!(shape(body.as_bytes()).is_ok(), "{body}");
        }
        for body in ["", " ", "{", "{} {}", "{'a':1}", "NaN"] {
            let problem = format!("{:?}", shape(body.as_bytes()).unwrap_err());
            assert!(problem.contains("body-not-json"), "{body}: {problem}");
        }
        for body in [r#"{"a":1,"a":1}"#, r#"[{"x":{"b":1,"\u0062":2}}]"#] {
            assert_eq!(shape(body.as_bytes()), Err(REPEATED_NAMES), "{body}");
        }
    }

    #[test]
    fn a_kept_answer_is_sent_as_it_is() {
        let response = Response {
            status: 201,
            headers: vec![
                ("content-type".into(), "application/vnd.shop+json".into()),
                ("link".into(), "</a>; rel=\"x\"".into()),
                ("link".into(), "</b>; rel=\"y\"".into()),
            ],
            body: bytes::Bytes::from_static(b"{ \"id\": 1.0 }"),
        };
        let answer = stored(response.clone(), true);
        assert_eq!(answer.status(), 201);
        let headers = answer.headers();
        assert_eq!(headers.get_all("link").count(), 2);
        assert_eq!(
            headers.get("content-type").unwrap(),
            "application/vnd.shop+json"
        );
        assert_eq!(headers.get(REPLAYED).unwrap(), "true");
        assert!(stored(response, false).headers().get(REPLAYED).is_none());
    }
}
