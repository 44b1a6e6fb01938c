//! Where an operation stands, for who asks: by its key, by its id, as a list.
//!
//! A client with the role `submit` alone sees what is its own. A person's reason is for those with the
//! role `read`.

use std::fmt::Write as _;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::web::Query;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::domain::operation::{IdempotencyKey, Listed, Record, Response, State, Stored};
use crate::domain::{Caller, Role};
use crate::engine::Engine;
use crate::store::OperationFilter;

use super::events;
use super::problem::Problem;

const LIMIT_DEFAULT: u16 = 50;
const LIMIT_MAX: u16 = 500;

/// An operation as it is told.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Its id.
    pub id: Uuid,
    /// Its operation.
    pub operation: String,
    /// Whose key it is.
    pub client: String,
    /// The key.
    pub key: String,
    /// `processing`, `uncertain`, `completed` or `failed`.
    pub state: &'static str,
    /// The present run, from 1 on.
    pub run: i16,
    /// Tries recorded so far.
    pub attempts: u32,
    /// When its key was reserved.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When its key may name another intent.
    pub expires_at: Option<Timestamp>,
    /// The next try, or the next probe.
    pub next_check_at: Option<Timestamp>,
    /// Of the request that brought it.
    pub correlation_id: Uuid,
    /// What was made.
    pub resource: Option<String>,
    /// The id that the outside world gave it.
    pub external_id: Option<String>,
    /// How it ended.
    pub outcome: Option<Ended>,
    /// What is left of its answer.
    pub response: Option<Answered>,
}

/// How an operation ended.
#[derive(Debug, Clone, Serialize)]
pub struct Ended {
    /// `succeeded`, `failed`, `skipped`, `dead` or `cancelled`.
    pub result: &'static str,
    /// `handler`, `probe` or `operator`.
    pub decided_by: &'static str,
    /// When.
    pub at: Timestamp,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A stored answer.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Answered {
    /// It is kept.
    Kept {
        /// Its status.
        status: u16,
        /// Its headers.
        headers: Vec<(String, String)>,
        /// Length of its body.
        bytes: usize,
        /// Its body, where it is text.
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<String>,
        /// Its body, where it is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        body_base64: Option<String>,
    },
    /// It is not kept any more.
    Expired {
        /// True.
        expired: bool,
    },
}

impl Status {
    /// What a record says.
    pub fn of(operation: &str, client: &str, key: &str, record: &Record) -> Self {
        Self {
            id: record.id,
            operation: operation.to_owned(),
            client: client.to_owned(),
            key: key.to_owned(),
            state: record.state.as_str(),
            run: record.run,
            attempts: record.attempts,
            created_at: record.created_at,
            updated_at: record.updated_at,
            expires_at: record.expires_at,
            next_check_at: record.next_check_at,
            correlation_id: record.correlation_id,
            resource: record.resource.clone(),
            external_id: record.external_id.clone(),
            outcome: record.ended.as_ref().map(|ended| Ended {
                result: ended.ending.as_str(),
                decided_by: ended.decided_by.as_str(),
                at: ended.at,
                reason: ended.reason.clone(),
            }),
            response: match &record.stored {
                Stored::Nothing => None,
                Stored::Kept(response) => Some(answered(response)),
                Stored::Purged => Some(Answered::Expired { expired: true }),
            },
        }
    }

    /// What a row of a list says.
    pub fn of_row(row: &Listed) -> Self {
        let key = row.key.as_str();
        let (client, name) = IdempotencyKey::of_event_key(key).unwrap_or_default();
        Self::of(&row.operation, &client, &name, &row.record)
    }

    /// Without what is for people.
    #[must_use]
    pub fn for_client(mut self) -> Self {
        if let Some(outcome) = &mut self.outcome {
            outcome.reason = None;
        }
        self
    }

    /// Without the body of its answer.
    #[must_use]
    pub fn for_list(mut self) -> Self {
        if let Some(Answered::Kept {
            body, body_base64, ..
        }) = &mut self.response
        {
            *body = None;
            *body_base64 = None;
        }
        self
    }
}

fn answered(response: &Response) -> Answered {
    let text = std::str::from_utf8(&response.body).ok();
    Answered::Kept {
        status: response.status,
        headers: response.headers.clone(),
        bytes: response.body.len(),
        body: text.map(str::to_owned),
        body_base64: text
            .is_none()
            .then(|| BASE64_STANDARD.encode(&response.body)),
    }
}

/// The address of an operation's status; the key percent-encoded.
pub(super) fn location(operation: &str, key: &str) -> String {
    let mut at = format!("/v1/operations/{operation}/keys/");
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            at.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            write!(at, "%{byte:02X}").unwrap_or_default();
        }
    }
    at
}

/// A page of operations, newest first.
#[derive(Debug, Serialize)]
struct Page {
    operations: Vec<Status>,
    /// Pass as `before` for the next page; `None` on the last.
    next: Option<Uuid>,
}

pub(super) async fn by_key(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let (operation, key) = path.into_inner();
    let client = match client(&caller, request.query_string()) {
        Ok(client) => client,
        Err(problem) => return problem.response(),
    };
    let Some(operation) = engine.operation(&operation) else {
        return NO_OPERATION.response();
    };
    let event_key = IdempotencyKey::of(&key)
        .ok()
        .and_then(|key| key.event_key(&client).ok());
    let Some(event_key) = event_key else {
        return NO_OPERATION.response();
    };
    match engine.operation_record(&operation, &event_key).await {
        Ok(Some(record)) => {
            let status = Status::of(operation.name(), &client, &key, &record);
            show(&caller, status)
        }
        Ok(None) => NO_OPERATION.response(),
        Err(error) => events::failed(&error),
    }
}

pub(super) async fn by_id(
    caller: Caller,
    path: web::Path<String>,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let Ok(id) = path.parse() else {
        return NO_OPERATION.response();
    };
    match engine.store().operation_by_id(id).await {
        Ok(Some(row)) => {
            let status = Status::of_row(&row);
            // Somebody else's is as if it were not there.
            if caller.may(Role::Read) || status.client == caller.name() {
                show(&caller, status)
            } else {
                NO_OPERATION.response()
            }
        }
        Ok(None) => NO_OPERATION.response(),
        Err(error) => events::failed(&error),
    }
}

fn show(caller: &Caller, status: Status) -> HttpResponse {
    let status = if caller.may(Role::Read) {
        status
    } else {
        status.for_client()
    };
    HttpResponse::Ok()
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .json(status)
}

pub(super) async fn list(request: HttpRequest, engine: web::Data<Engine>) -> HttpResponse {
    let filter = match filter(request.query_string()) {
        Ok(filter) => filter,
        Err(problem) => return problem.response(),
    };
    let found = engine.store().list_operations(&filter).await;
    events::answer(found.map(|rows| {
        Page {
            next: rows
                .last()
                .filter(|_| rows.len() == usize::from(filter.limit))
                .map(|row| row.record.id),
            operations: rows
                .iter()
                .map(|row| Status::of_row(row).for_list())
                .collect(),
        }
    }))
}

fn pairs(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let pairs = Query::<Vec<(String, String)>>::from_query(query)
        .map_err(|_| invalid("The query is not in the form name=value&name=value."))?
        .into_inner();
    let mut names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair.first() == pair.last()) {
        return Err(invalid("A parameter is given twice."));
    }
    if pairs.iter().any(|(_, value)| value.contains('\0')) {
        return Err(invalid("A parameter holds NUL."));
    }
    Ok(pairs)
}

/// Whose key is asked for: the caller's own, unless somebody who may look says whose.
fn client(caller: &Caller, query: &str) -> Result<String, Problem> {
    let mut client = caller.name().to_owned();
    for (name, value) in pairs(query)? {
        if name != "client" {
            return Err(invalid("A status has the parameter client only."));
        }
        if !caller.may(Role::Read) && value != caller.name() {
            return Err(FOREIGN);
        }
        client = value;
    }
    Ok(client)
}

fn filter(query: &str) -> Result<OperationFilter, Problem> {
    let mut filter = OperationFilter {
        limit: LIMIT_DEFAULT,
        ..OperationFilter::default()
    };
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "operation" => filter.operation = Some(value),
            "state" => {
                let state = State::named(&value).ok_or_else(|| {
                    invalid("state is one of processing, uncertain, completed, failed.")
                })?;
                filter.state = Some(state);
            }
            "older_than" => {
                let age = age(&value)?;
                filter.created_before = Timestamp::now().checked_sub(age).ok();
            }
            "before" => {
                let before = value.parse().map_err(|_| {
                    invalid("before is the `next` of an earlier page, an operation's id.")
                })?;
                filter.before = Some(before);
            }
            "limit" => {
                filter.limit = value
                    .parse()
                    .ok()
                    .filter(|limit| (1..=LIMIT_MAX).contains(limit))
                    .ok_or_else(|| invalid("limit is a number from 1 to 500."))?;
            }
            _ => {
                return Err(Problem::fixed(
                    StatusCode::BAD_REQUEST,
                    "unknown-parameter",
                    "Unknown parameter",
                    "This list has operation, state, older_than, before and limit.",
                ));
            }
        }
    }
    Ok(filter)
}

/// `90s`, `10m`, `2h`, `3d`.
fn age(text: &str) -> Result<Duration, Problem> {
    let wrong = || invalid("older_than is a whole number and one of s, m, h, d: 90s, 10m, 2h, 3d.");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u32 = text
        .strip_suffix(unit)
        .filter(|count| count.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|count| count.parse().ok())
        .filter(|count| *count <= 100_000_000 / factor)
        .ok_or_else(wrong)?;
    Ok(Duration::from_secs(u64::from(count) * u64::from(factor)))
}

fn invalid(detail: &'static str) -> Problem {
    Problem::fixed(
        StatusCode::BAD_REQUEST,
        "invalid-parameter",
        "Invalid parameter",
        detail,
    )
}

const NO_OPERATION: Problem = Problem::fixed(
    StatusCode::NOT_FOUND,
    "not-found",
    "Not found",
    "No operation of yours has this key or id. A key is asked for at /v1/operations/{operation}/keys/{key}, percent-encoded.",
);

const FOREIGN: Problem = Problem::fixed(
    StatusCode::FORBIDDEN,
    "forbidden",
    "Not with this token",
    "Keys of other clients need a token with the role \"read\".",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_leads_to_any_key() {
        assert_eq!(
            location("pay", "a b/c%:\"~1"),
            "/v1/operations/pay/keys/a%20b%2Fc%25%3A%22~1"
        );
    }

    #[test]
    fn a_filter_is_read_and_what_is_not_understood_refused() {
        let read = filter("operation=pay&state=uncertain&older_than=10m&limit=7").unwrap();
        assert_eq!(read.operation.as_deref(), Some("pay"));
        assert_eq!(read.state, Some(State::Uncertain));
        let ago = Timestamp::now().duration_since(read.created_before.unwrap());
        assert!((600..660).contains(&ago.as_secs()));
        assert_eq!(read.limit, 7);
        for wrong in [
            "state=done",
            "older_than=10",
            "older_than=m",
            "older_than=-1m",
            "older_than=99999999999d",
            "limit=0",
            "limit=501",
            "before=x",
            "client=a",
            "operation=a&operation=b",
            "operation=%00",
        ] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_who_may_read_asks_for_others() {
        assert_eq!(client(&Caller::local(), ""), Ok("local".to_owned()));
        assert_eq!(
            client(&Caller::local(), "client=shop"),
            Ok("shop".to_owned())
        );
        assert!(client(&Caller::local(), "klient=shop").is_err());
    }
}
