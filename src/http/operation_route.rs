//! Routes of an application's own, made idempotent: the rules, tables and answers of
//! `POST /v1/operations/{operation}`, behind the application's own address and its own authorisation.
//!
//! It runs nothing itself. What such a route does is a handler of the engine, so that an intent whose process
//! has died is taken over by the same leases as any other event.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, Resource, Route, web};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::dispatch::Delivered;
use crate::domain::operation::IdempotencyKey;
use crate::engine::Engine;

use super::inbox::Limits;
use super::operations::{self, Desk, Door};
use super::problem::Problem;
use super::{early, operation_status};

/// Name of the resource that tells where an intent stands.
const STATUS: &str = "oncehook-operation-status";

/// Longest name of a client.
const CLIENT_BYTES_MAX: usize = 255;

/// Stands in a path's parameter for bytes that are no text: two paths would look like one.
const REPLACED: char = char::REPLACEMENT_CHARACTER;

type Client = dyn Fn(&HttpRequest) -> Option<String> + Send + Sync;

/// Makes routes of an application idempotent.
///
/// [`Operations::route`] takes the place of the route's own function: it checks key and content, stores the
/// intent, waits for its outcome and answers, as `POST /v1/operations/{operation}` does. The function is given
/// to the engine, as the handler of an operation of that name:
///
/// - a [`Function`](crate::Function) writes through the transaction in which its answer is stored: both are
///   there, or neither. After a crash it runs again.
/// - an [`External`](crate::External) has effects outside. After a crash in mid-call its result is uncertain:
///   it is asked for, and not repeated.
///
/// Both read the request by [`Submitted::of`]. Clones share one budget of bytes being read, so make one and
/// clone it into the factory that actix calls per worker.
///
/// # Examples
///
/// ```no_run
/// # async fn run(engine: oncehook::Engine) -> std::io::Result<()> {
/// use actix_web::{App, HttpRequest, HttpServer};
/// use oncehook::{Limits, Operations};
///
/// // Whoever the application takes the sender for: a key belongs to its client.
/// fn client(request: &HttpRequest) -> Option<String> {
///     let user = request.headers().get("X-User")?;
///     user.to_str().ok().map(str::to_owned)
/// }
///
/// let operations = Operations::new(engine, Limits::default(), client);
/// HttpServer::new(move || {
///     App::new()
///         .route("/accounts/{account}/payments", operations.route("create_payment"))
///         .service(operations.statuses("/intents"))
/// })
/// .bind("127.0.0.1:8080")?
/// .run()
/// .await
/// # }
/// ```
#[derive(Clone)]
pub struct Operations(Arc<Inner>);

struct Inner {
    engine: Engine,
    desk: Desk,
    client: Box<Client>,
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations")
            .field("desk", &self.0.desk)
            .finish_non_exhaustive()
    }
}

impl Operations {
    /// Routes for the engine under these limits.
    ///
    /// `client` names who sends a request, 1 to 255 bytes without control characters: the same key of two clients
    /// is two intents. `None` is answered 401, and nothing is stored. It is asked at every request, so that a
    /// stored answer is told only to who may still have it.
    pub fn new(
        engine: Engine,
        limits: Limits,
        client: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            engine,
            desk: Desk::new(limits),
            client: Box::new(client),
        }))
    }

    /// The route of an operation, for POST. As long as the engine has no operation of this name it answers 404.
    ///
    /// The intent is the path's parameters, the query and the body together: the same key with another account in
    /// the path is refused as other content. It is stored and compared as
    /// `{"path": {..}, "query": "..", "body": ..}`, so the `volatile` members of such an operation are
    /// pointers such as `/body/client_time`.
    pub fn route(&self, operation: impl Into<String>) -> Route {
        let (operations, operation) = (self.clone(), Arc::<str>::from(operation.into()));
        web::post().to(move |request: HttpRequest, payload: web::Payload| {
            let (operations, operation) = (operations.clone(), Arc::clone(&operation));
            async move { operations.submit(&operation, &request, payload).await }
        })
    }

    /// `GET {path}/{operation}/keys/{key}`: where an intent of the client's own stands. Once it is there, answers
    /// for what is under way name it in `Location`. To be registered where no part of the path is a parameter.
    pub fn statuses(&self, path: &str) -> Resource {
        let operations = self.clone();
        web::resource(format!("{path}/{{operation}}/keys/{{key:.+}}"))
            .name(STATUS)
            .route(
                web::get().to(move |request: HttpRequest, which: web::Path<Which>| {
                    let operations = operations.clone();
                    async move { operations.status(&request, &which).await }
                }),
            )
    }

    async fn submit(
        &self,
        operation: &str,
        request: &HttpRequest,
        payload: web::Payload,
    ) -> HttpResponse {
        let Some(client) = self.client(request) else {
            return early::without_reading(NO_CLIENT.response(), payload);
        };
        let Inner { engine, desk, .. } = &*self.0;
        let asked = (operation, client.as_str());
        operations::carry_out(&OwnRoute, engine, desk, asked, request, payload).await
    }

    async fn status(&self, request: &HttpRequest, which: &Which) -> HttpResponse {
        let Some(client) = self.client(request) else {
            return NO_CLIENT.response();
        };
        let Which { operation, key } = which;
        operation_status::of_key(&self.0.engine, (operation, &client, key), false).await
    }

    fn client(&self, request: &HttpRequest) -> Option<String> {
        let client = (self.0.client)(request)?;
        let fits =
            (1..=CLIENT_BYTES_MAX).contains(&client.len()) && !client.chars().any(char::is_control);
        if !fits {
            tracing::error!(
                bytes = client.len(),
                "the application names a client in a way that cannot be stored: answered 401"
            );
        }
        fits.then_some(client)
    }
}

#[derive(Debug, Deserialize)]
struct Which {
    operation: String,
    key: String,
}

/// A route of the application.
struct OwnRoute;

impl Door for OwnRoute {
    fn content(&self, request: &HttpRequest, body: Bytes) -> Result<Bytes, Problem> {
        let path = parameters(request).ok_or(PATH_NOT_TEXT)?;
        if path.values().any(|value| value.contains(REPLACED)) {
            return Err(PATH_NOT_TEXT);
        }
        let content = content(&path, request.query_string(), &body);
        // A body as deep as may be is too deep inside of it.
        operations::shape(&content)?;
        Ok(content)
    }

    fn location(&self, request: &HttpRequest, operation: &str, key: &str) -> Option<String> {
        let key = operation_status::encoded(key);
        let url = request.url_for(STATUS, [operation, &key]).ok()?;
        Some(url.path().to_owned())
    }
}

/// The parameters of the path, decoded as for any route.
fn parameters(request: &HttpRequest) -> Option<BTreeMap<String, String>> {
    let given = request.match_info();
    let values: Vec<String> = given.load().ok()?;
    let names = given.iter().map(|(name, _)| name.to_owned());
    Some(names.zip(values).collect())
}

/// What makes the intent; the body is one JSON text, and stays as it was sent.
fn content(path: &BTreeMap<String, String>, query: &str, body: &[u8]) -> Bytes {
    // Texts always print.
    let path = serde_json::to_vec(path).unwrap_or_default();
    let query = serde_json::to_vec(query).unwrap_or_default();
    let parts: [&[u8]; 7] = [
        b"{\"path\":",
        &path,
        b",\"query\":",
        &query,
        b",\"body\":",
        body,
        b"}",
    ];
    parts.concat().into()
}

/// A request to a route of [`Operations`], as its handler reads it: on any node, at any later time.
pub struct Submitted {
    /// Whose key it is.
    pub client: String,
    /// The client's key. What leaves the database carries [`Delivered::effect_key`] in its place.
    pub key: String,
    /// The parameters of the path.
    pub path: BTreeMap<String, String>,
    /// The query, as it was sent.
    pub query: String,
    /// The body, as it was sent: one JSON text.
    pub body: Bytes,
}

/// The event was not submitted at a route of [`Operations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this was not submitted at a route of the application")]
pub struct NotOfRoute;

impl Submitted {
    /// The request that an event is.
    ///
    /// # Errors
    ///
    /// [`NotOfRoute`]: somebody submitted another content at `POST /v1/operations/{operation}`, or it is no event
    /// of an operation. No later try can read it.
    pub fn of(event: &Delivered) -> Result<Self, NotOfRoute> {
        #[derive(Deserialize)]
        struct Content<'a> {
            path: BTreeMap<String, String>,
            query: String,
            #[serde(borrow)]
            body: &'a RawValue,
        }
        let (client, key) = IdempotencyKey::of_event_key(&event.key).ok_or(NotOfRoute)?;
        let content: Content<'_> = serde_json::from_slice(&event.body).map_err(|_| NotOfRoute)?;
        Ok(Self {
            client,
            key,
            path: content.path,
            query: content.query,
            body: Bytes::copy_from_slice(content.body.get().as_bytes()),
        })
    }

    /// The body as a value.
    ///
    /// # Errors
    ///
    /// The body does not have this form: a final "no" to the client, [`Answer::Failed`](crate::Answer::Failed)
    /// with a response of the application's.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

impl fmt::Debug for Submitted {
    /// Key and content stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted")
            .field("client", &self.client)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

const NO_CLIENT: Problem = Problem::fixed(
    StatusCode::UNAUTHORIZED,
    "unauthorized",
    "Sender not known",
    "An idempotency key belongs to a client, and this application does not know who sends this. Nothing was reserved.",
);

const PATH_NOT_TEXT: Problem = Problem::fixed(
    StatusCode::BAD_REQUEST,
    "path-not-text",
    "Path not understood",
    "A part of the path is not UTF-8, and what it names cannot be told. Nothing was reserved.",
);

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn event(key: &str, body: &[u8]) -> Delivered {
        Delivered {
            id: Uuid::nil(),
            source: "pay".to_owned(),
            key: key.to_owned(),
            event_type: None,
            entity: None,
            occurred_at: None,
            received_at: Timestamp::UNIX_EPOCH,
            content_type: None,
            body: body.into(),
            effect_key: "e".to_owned(),
            run: 1,
            attempt: 1,
            correlation_id: Uuid::nil(),
        }
    }

    #[test]
    fn what_was_sent_is_read_back_and_the_body_is_not_written_anew() {
        let body = b"{\"b\":1.0,  \"a\":9007199254740993}";
        let path = [("account", "7\"/\u{e9}"), ("a", "b")];
        let path = path.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let path = BTreeMap::from(path);
        let content = content(&path, "x=\"1\"&y", body);
        let key = IdempotencyKey::of("a:b c").unwrap();
        let key = key.event_key("shop:1").unwrap();
        let read = Submitted::of(&event(key.as_str(), &content)).unwrap();
        assert_eq!(read.body, &body[..]);
        assert_eq!(
            (read.client.as_str(), read.key.as_str()),
            ("shop:1", "a:b c")
        );
        assert_eq!(read.path, path);
        assert_eq!(read.query, "x=\"1\"&y");
        assert!(!format!("{read:?}").contains("a:b c"), "{read:?}");
    }

    #[test]
    fn what_another_submitted_is_told_apart() {
        for (key, body) in [
            ("shop:k", &b"{\"amount\":1}"[..]),
            ("shop:k", b""),
            ("evt_1", b"{\"path\":{},\"query\":\"\",\"body\":1}"),
        ] {
            let read = Submitted::of(&event(key, body));
            assert_eq!(read.err(), Some(NotOfRoute), "{key}");
        }
    }
}
