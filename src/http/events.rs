//! What people ask of the API listener: lists, one event's timeline, its bytes, a replay, a decision.
//!
//! A key goes into the path percent-encoded (`/` as `%2F`, `%` as `%25`). A `/` is also taken as
//! it is, unless the key ends in `/raw`, `/wait`, `/replay` or `/resolve`.

use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::domain::{Caller, EventKey};
use crate::engine::Engine;
use crate::store::{ReplayRequest, Resolution, ResolveRequest, StoreError};

use super::body::{self, Budget};
use super::filter;
use super::problem::Problem;
use super::{early, incoming, wait};

/// Longest body of a command.
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// For a command's body to arrive.
const COMMAND_TIME: std::time::Duration = std::time::Duration::from_secs(10);

/// Registers `/v1/events` and what is below it.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/v1/events")
                .route(web::get().to(list))
                .default_service(web::to(only_get)),
        )
        .service(
            web::resource("/v1/events/{source}/{key:.+}/raw")
                .route(web::get().to(raw))
                .default_service(web::to(only_get)),
        )
        .service(
            web::resource("/v1/events/{source}/{key:.+}/wait")
                .route(web::get().to(wait::wait))
                .default_service(web::to(only_get)),
        )
        .service(web::resource("/v1/events/{source}/{key:.+}/replay").to(replay))
        .service(web::resource("/v1/events/{source}/{key:.+}/resolve").to(resolve))
        .service(
            web::resource("/v1/events/{source}/{key:.+}")
                .route(web::get().to(timeline))
                .default_service(web::to(only_get)),
        );
}

async fn list(request: HttpRequest, engine: web::Data<Engine>) -> HttpResponse {
    let filter = match filter::parse(request.query_string()) {
        Ok(filter) => filter,
        Err(problem) => return problem.response(),
    };
    answer(engine.store().events(&filter).await)
}

async fn timeline(path: web::Path<(String, String)>, engine: web::Data<Engine>) -> HttpResponse {
    let (source, key) = path.into_inner();
    if !may_exist(&source, &key) {
        return NO_EVENT.response();
    }
    answer(engine.store().timeline(&source, &key).await)
}

async fn raw(path: web::Path<(String, String)>, engine: web::Data<Engine>) -> HttpResponse {
    let (source, key) = path.into_inner();
    if !may_exist(&source, &key) {
        return NO_EVENT.response();
    }
    match engine.store().body(&source, &key).await {
        Ok(bytes) => HttpResponse::Ok()
            .content_type("application/octet-stream")
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .insert_header((header::CONTENT_DISPOSITION, "attachment"))
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .body(bytes),
        Err(error) => failed(&error),
    }
}

/// Whether the database can be asked at all: it knows no text with NUL, and no key beyond the
/// longest.
pub(super) fn may_exist(source: &str, key: &str) -> bool {
    !source.contains('\0') && EventKey::stored(key).is_ok()
}

pub(super) const NO_EVENT: Problem = Problem::fixed(
    StatusCode::NOT_FOUND,
    "not-found",
    "Not found",
    "No event can have this key: it is empty, longer than 2,048 bytes or holds NUL.",
);

/// A replay, as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replay {
    handler: String,
    reason: String,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    expected_run: Option<i16>,
}

/// A command of people: what it must hold beside its shape.
pub(super) trait Command: DeserializeOwned {
    /// Its members, for who got them wrong.
    const FORM: &'static str;
    /// Texts that the database gets.
    fn texts(&self) -> Vec<&str>;
    fn reason(&self) -> &str;
}

impl Command for Replay {
    const FORM: &'static str = "{\"handler\": text, \"reason\": text, \"force\": bool, \"expected_run\": number}, the last two may be left out";

    fn texts(&self) -> Vec<&str> {
        vec![&self.handler, &self.reason]
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

/// A person's decision, as given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolve {
    handler: String,
    #[serde(rename = "as")]
    resolution: Resolution,
    reason: String,
    #[serde(default)]
    evidence: Option<String>,
}

impl Command for Resolve {
    const FORM: &'static str = "{\"handler\": text, \"as\": \"succeeded\", \"failed\", \"retry\", \"dead\" or \"probe\", \"reason\": text, \"evidence\": text}, the last may be left out";

    fn texts(&self) -> Vec<&str> {
        let evidence = self.evidence.as_deref().unwrap_or_default();
        vec![&self.handler, &self.reason, evidence]
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

async fn resolve(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let wanted: Resolve = match command(&request, &mut payload).await {
        Ok(body) => match parse(&body) {
            Ok(wanted) => wanted,
            Err(problem) => return early::without_reading(problem.response(), payload),
        },
        Err(answer) => return early::without_reading(answer, payload),
    };
    let (source, key) = path.into_inner();
    if !may_exist(&source, &key) {
        return NO_EVENT.response();
    }
    let request = ResolveRequest {
        source,
        key,
        handler: wanted.handler,
        resolution: wanted.resolution,
        reason: wanted.reason,
        evidence: wanted.evidence,
        actor: caller.actor(),
    };
    answer(engine.store().resolve(&request).await)
}

async fn replay(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let wanted: Replay = match command(&request, &mut payload).await {
        Ok(body) => match parse(&body) {
            Ok(wanted) => wanted,
            Err(problem) => return early::without_reading(problem.response(), payload),
        },
        Err(answer) => return early::without_reading(answer, payload),
    };
    let (source, key) = path.into_inner();
    if !may_exist(&source, &key) {
        return NO_EVENT.response();
    }
    let request = ReplayRequest {
        source,
        key,
        handler: wanted.handler,
        force: wanted.force,
        expected_run: wanted.expected_run,
        reason: wanted.reason,
        actor: caller.actor(),
    };
    answer(engine.store().replay(&request).await)
}

/// Reads the command's bytes out of the request, or says why not.
pub(super) async fn command(
    request: &HttpRequest,
    payload: &mut web::Payload,
) -> Result<Vec<u8>, HttpResponse> {
    if request.method() != Method::POST {
        return Err(method_not_allowed("POST"));
    }
    if !is_json(request) {
        return Err(NOT_JSON.response());
    }
    let declared = incoming::declared_length(request);
    let budget = Budget::new(COMMAND_BYTES_MAX);
    let body = body::collect(payload, declared, COMMAND_BYTES_MAX, COMMAND_TIME, &budget)
        .await
        .map_err(|stopped| stopped_answer(stopped.cause))?;
    Ok(body.release().to_vec())
}

const NOT_JSON: Problem = Problem::fixed(
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "not-json",
    "Commands are JSON",
    "Send Content-Type: application/json. A web page of another origin cannot do that unasked, which is why it is required.",
);

/// A browser sends other types across origins without asking, this one it does not.
fn is_json(request: &HttpRequest) -> bool {
    let value = request.headers().get(header::CONTENT_TYPE);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

pub(super) fn stopped_answer(cause: body::Cause) -> HttpResponse {
    match cause {
        body::Cause::Refused(refusal) => {
            let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
            Problem::of_refusal(refusal, status).response()
        }
        body::Cause::NoRoom => Problem::UNAVAILABLE.response(),
    }
}

pub(super) fn invalid(detail: String) -> Problem {
    Problem::with(
        StatusCode::BAD_REQUEST,
        "invalid-command",
        "Command not understood",
        detail,
    )
}

pub(super) fn parse<T: Command>(body: &[u8]) -> Result<T, Problem> {
    let wanted: T = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("The body must be {}: {error}.", T::FORM)))?;
    if wanted.reason().trim().is_empty() {
        return Err(invalid(
            "A command needs a reason; it is kept in the audit.".to_owned(),
        ));
    }
    if wanted.texts().iter().any(|text| text.contains('\0')) {
        return Err(invalid("No text may hold NUL.".to_owned()));
    }
    Ok(wanted)
}

pub(super) async fn only_get(_request: HttpRequest, payload: web::Payload) -> HttpResponse {
    early::without_reading(method_not_allowed("GET"), payload)
}

pub(super) fn method_not_allowed(allowed: &'static str) -> HttpResponse {
    let problem = Problem::with(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "Method not allowed",
        format!("This address takes {allowed}."),
    );
    let mut response = problem.response();
    response
        .headers_mut()
        .insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    response
}

pub(super) fn answer<T: Serialize>(found: Result<T, StoreError>) -> HttpResponse {
    match found {
        Ok(found) => HttpResponse::Ok()
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .json(found),
        Err(error) => failed(&error),
    }
}

/// What the store says of missing and refused things is written for people and holds no payload;
/// anything else is between us and the database.
pub(super) fn failed(error: &StoreError) -> HttpResponse {
    match error {
        StoreError::PayloadExpired(detail) => Problem::with(
            StatusCode::GONE,
            "payload-expired",
            "Payload expired",
            detail.clone(),
        )
        .response(),
        StoreError::NotFound(detail) => Problem::with(
            StatusCode::NOT_FOUND,
            "not-found",
            "Not found",
            detail.clone(),
        )
        .response(),
        StoreError::CallUnderWay { text, .. } => Problem::with(
            StatusCode::CONFLICT,
            "call-under-way",
            "A call may still be under way",
            text.clone(),
        )
        .response(),
        StoreError::CountUnderWay => Problem::with(
            StatusCode::SERVICE_UNAVAILABLE,
            "count-under-way",
            "Runs are being counted",
            error.to_string(),
        )
        .response(),
        StoreError::Refused(detail) => Problem::with(
            StatusCode::CONFLICT,
            "refused",
            "Not possible now",
            detail.clone(),
        )
        .response(),
        error => {
            tracing::warn!(error = %error, "a question could not be answered");
            NO_DATABASE.response()
        }
    }
}

const NO_DATABASE: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "database-unavailable",
    "Database not available",
    "The database did not answer; the log names the cause. Ask again.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_needs_a_handler_and_a_reason_and_knows_no_other_member() {
        let full = br#"{"handler":"ledger","reason":"mended","force":true,"expected_run":2}"#;
        assert_eq!(
            parse(full),
            Ok(Replay {
                handler: "ledger".into(),
                reason: "mended".into(),
                force: true,
                expected_run: Some(2),
            })
        );
        let short: Replay = parse(br#"{"handler":"ledger","reason":"mended"}"#).unwrap();
        assert_eq!((short.force, short.expected_run), (false, None));
        for wrong in [
            &b""[..],
            b"{}",
            br#"{"handler":"ledger","reason":" "}"#,
            br#"{"handler":"ledger","reason":"x","forced":true}"#,
            br#"{"handler":"ledger","reason":"a\u0000b"}"#,
            br#"{"handler":"ledger","reason":"x","expected_run":70000}"#,
        ] {
            let parsed = parse::<Replay>(wrong);
            assert!(parsed.is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_decision_is_one_of_five_and_has_a_reason() {
        let full = br#"{"handler":"payout","as":"succeeded","reason":"seen","evidence":"po_1"}"#;
        assert_eq!(
            parse(full),
            Ok(Resolve {
                handler: "payout".into(),
                resolution: Resolution::Succeeded,
                reason: "seen".into(),
                evidence: Some("po_1".into()),
            })
        );
        for word in Resolution::ALL.map(Resolution::as_str) {
            let body = format!(r#"{{"handler":"payout","as":"{word}","reason":"x"}}"#);
            assert!(parse::<Resolve>(body.as_bytes()).is_ok(), "{word}");
        }
        for wrong in [
            &br#"{"handler":"payout","as":"skipped","reason":"x"}"#[..],
            br#"{"handler":"payout","reason":"x"}"#,
            br#"{"handler":"payout","as":"dead","reason":""}"#,
            br#"{"handler":"payout","as":"dead","reason":"x","evidence":"\u0000"}"#,
            br#"{"handler":"payout","as":"dead","reason":"x","force":true}"#,
        ] {
            let parsed = parse::<Resolve>(wrong);
            assert!(parsed.is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_store_error_becomes_a_status_and_keeps_the_database_to_itself() {
        let status = |error: &StoreError| failed(error).status().as_u16();
        assert_eq!(status(&StoreError::NotFound("no such event".into())), 404);
        assert_eq!(status(&StoreError::Refused("still live".into())), 409);
        let (text, until) = ("under way".to_owned(), jiff::Timestamp::MAX);
        assert_eq!(status(&StoreError::CallUnderWay { text, until }), 409);
        assert_eq!(status(&StoreError::CountUnderWay), 503);
        assert_eq!(status(&StoreError::Unavailable("refused".into())), 503);
        assert_eq!(status(&StoreError::NotDurable), 503);
    }
}
