//! Who asks the API listener, and whether it may.
//!
//! One guard stands before all routes of the listener but health: a request gets to a handler only with a
//! [`Caller`], and only with the role that its method and path need, so no route can be without a check.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::uri::Authority;
use actix_web::http::{StatusCode, header};
use actix_web::middleware::Next;
use actix_web::{FromRequest, HttpMessage as _, HttpRequest, HttpResponse, web};

use crate::domain::access::{self, Caller, Denied, Role, Token};
use crate::store::{FoundToken, Store, StoreError};
use crate::telemetry;

use super::problem::Problem;
use super::{early, events, incoming};

/// How long an answer of the database holds: after this a revocation has its effect.
const HOLDS: Duration = Duration::from_secs(1);

/// Longest wait for an answer of the database, the wait for others who ask the same included.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// Ids that are remembered; most of what comes beyond are none of ours.
const REMEMBERED: usize = 1_024;

/// Least time between two log lines for the same reason.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// Its numbers are needed most while the database is away.
const METRICS: &str = "/metrics";

const UNAUTHORIZED: Problem = Problem::fixed(
    StatusCode::UNAUTHORIZED,
    "unauthorized",
    "Token not accepted",
    "Send Authorization: Bearer and a living token; `oncehook token create` makes one. Why this request was refused stands in the log, not here.",
);

const MISDIRECTED: Problem = Problem::fixed(
    StatusCode::MISDIRECTED_REQUEST,
    "misdirected",
    "Another name than this machine's",
    "There are no tokens, so this listener answers to localhost, 127.0.0.1, [::1] and its own address alone: a page of another site could reach it under a name of its own. Ask under one of these, or make a token: with one every name will do.",
);

/// An answer of the database.
#[derive(Debug)]
struct Look<T> {
    /// Just before it was asked.
    at: Instant,
    answer: T,
}

/// A question to the database, asked once for all who wait, and its last answer.
#[derive(Debug)]
struct Question<T> {
    asking: tokio::sync::Mutex<()>,
    last: Mutex<Option<Look<T>>>,
}

impl<T> Question<T> {
    fn new(answer: Option<T>) -> Self {
        let at = Instant::now();
        Self {
            asking: tokio::sync::Mutex::default(),
            last: Mutex::new(answer.map(|answer| Look { at, answer })),
        }
    }

    fn holds(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().is_some_and(|look| look.at.elapsed() < HOLDS)
    }

    /// Judges the answer, which is asked for anew when the last one does not hold any more. `or_before`:
    /// while the database is away, the last one will do.
    async fn judge<R>(
        &self,
        ask: impl AsyncFnOnce() -> Result<T, StoreError>,
        or_before: bool,
        judge: impl FnOnce(&mut Look<T>) -> R,
    ) -> Result<R, StoreError> {
        let asked = tokio::time::timeout(LOOK_TIME, async {
            let _asking = self.asking.lock().await;
            if !self.holds() {
                let at = Instant::now();
                // Large, and most requests do not ask.
                let answer = Box::pin(ask()).await?;
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(Look { at, answer });
            }
            Ok(())
        })
        .await
        .unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "asked for a token, it is silent".into(),
            ))
        });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (asked, last.as_mut()) {
            (Ok(()), Some(look)) => Ok(judge(look)),
            (Err(_), Some(look)) if or_before => Ok(judge(look)),
            (Err(error), _) => Err(error),
            (Ok(()), None) => Err(StoreError::Unavailable("no answer was kept".into())),
        }
    }
}

/// What a node knows of tokens. One for all workers of the listener.
#[derive(Debug)]
pub(super) struct Access {
    store: Store,
    listening: SocketAddr,
    /// Every request needs a token. Never false again.
    closed: AtomicBool,
    /// Whether there is a token.
    any: Question<bool>,
    /// What is known of the token with this id.
    known: Mutex<HashMap<i64, Arc<Question<Option<FoundToken>>>>>,
    logged: Mutex<HashMap<&'static str, Instant>>,
}

/// Why a request does not get to its handler.
#[derive(Debug)]
enum Refused {
    Denied(Denied, Option<i64>),
    Misdirected,
    Role(&'static [Role]),
    Store(StoreError),
}

impl Access {
    /// For a listener at this address. `tokens`: whether there is a token, if it was asked just now.
    pub(super) fn new(store: Store, listening: SocketAddr, tokens: Option<bool>) -> Self {
        Self {
            store,
            listening,
            closed: AtomicBool::new(tokens == Some(true) || !listening.ip().is_loopback()),
            any: Question::new(tokens),
            known: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    async fn admit(&self, request: &HttpRequest) -> Result<Caller, Refused> {
        // Percent-encoding is undone here as it is where routes are found.
        let path = request.match_info().as_str();
        let shown = shown(request).map_err(|denied| Refused::Denied(denied, None))?;
        let caller = match shown {
            // Also where none is needed: a token that is new must not be taken for nobody's.
            Some(token) => self.owner(&token, path == METRICS).await?,
            None if self.is_closed(path == METRICS).await? => {
                return Err(Refused::Denied(Denied::Missing, None));
            }
            // No page can send somebody's token, so only who needs none is asked for the name.
            None if !names_us(request, self.listening) => return Err(Refused::Misdirected),
            None => Caller::local(),
        };
        let needed = Role::needed(request.method().as_str(), path);
        if needed.iter().any(|role| caller.may(*role)) {
            Ok(caller)
        } else {
            Err(Refused::Role(needed))
        }
    }

    /// Whether every request needs a token.
    async fn is_closed(&self, or_before: bool) -> Result<bool, Refused> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(true);
        }
        let ask = async || self.store.any_token().await;
        let any = self.any.judge(ask, or_before, |look| look.answer).await;
        let any = any.map_err(Refused::Store)?;
        if any {
            self.closed.store(true, Ordering::Release);
        }
        Ok(any)
    }

    /// Whose token it is.
    async fn owner(&self, token: &Token, or_before: bool) -> Result<Caller, Refused> {
        let id = token.id();
        let question = self.question(id);
        let judged = question
            .judge(
                async || self.store.find_token(id).await,
                or_before,
                |look| {
                    let known = look.answer.as_ref().map(|found| &found.known);
                    let caller = access::admit(token, known, look.at.elapsed())?;
                    let found = look.answer.as_mut();
                    let unused = found.is_some_and(|found| std::mem::take(&mut found.unused));
                    Ok((caller, unused))
                },
            )
            .await
            .map_err(Refused::Store)?;
        let (caller, unused) = judged.map_err(|denied| Refused::Denied(denied, Some(id)))?;
        // There is one, whatever was found before or becomes of the table.
        self.closed.store(true, Ordering::Release);
        if unused {
            self.keep_use(id);
        }
        Ok(caller)
    }

    /// Writes the time of a token's use; the request does not wait for it.
    fn keep_use(&self, id: i64) {
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.token_used(id).await {
                tracing::debug!(token = id, error = %error, "last use of a token not kept");
            }
        });
    }

    fn question(&self, id: i64) -> Arc<Question<Option<FoundToken>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED && !known.contains_key(&id) {
            known.retain(|_, question| question.holds());
            if known.len() >= REMEMBERED {
                known.clear();
            }
        }
        let fresh = || Arc::new(Question::new(None));
        Arc::clone(known.entry(id).or_insert_with(fresh))
    }

    fn answer(&self, request: &HttpRequest, refused: &Refused) -> HttpResponse {
        match refused {
            Refused::Denied(denied, token) => {
                telemetry::api_refused(denied.code());
                if self.may_log(denied.code()) {
                    let peer = incoming::peer(request).map(tracing::field::display);
                    tracing::warn!(
                        reason = denied.code(),
                        token,
                        peer,
                        "API request answered 401"
                    );
                }
                let mut answer = UNAUTHORIZED.response();
                let scheme = header::HeaderValue::from_static("Bearer");
                answer
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, scheme);
                answer
            }
            Refused::Misdirected => {
                telemetry::api_refused("misdirected");
                MISDIRECTED.response()
            }
            Refused::Role(role) => {
                telemetry::api_refused("role");
                forbidden(role).response()
            }
            Refused::Store(error) => events::failed(error),
        }
    }

    fn may_log(&self, reason: &'static str) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let due = logged
            .get(reason)
            .is_none_or(|at| at.elapsed() >= LOG_PAUSE);
        if due {
            logged.insert(reason, Instant::now());
        }
        due
    }
}

/// The token of a request; one that is sent twice is none.
fn shown(request: &HttpRequest) -> Result<Option<Token>, Denied> {
    let mut fields = request.headers().get_all(header::AUTHORIZATION);
    let first = fields.next().and_then(|field| field.to_str().ok());
    if fields.next().is_some() {
        return Err(Denied::Malformed);
    }
    first.map_or(Ok(None), Token::shown)
}

/// Whether every name that the request gives its target is ours.
fn names_us(request: &HttpRequest, listening: SocketAddr) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).peekable();
    let of_target = request.uri().authority().map(Authority::as_str);
    hosts.peek().is_some()
        && hosts.all(|host| {
            host.to_str()
                .is_ok_and(|host| access::is_own_host(host, listening))
        })
        && of_target.is_none_or(|target| access::is_own_host(target, listening))
}

fn forbidden(roles: &[Role]) -> Problem {
    let first = roles.first().map_or("", |role| role.as_str());
    let words: Vec<_> = roles
        .iter()
        .map(|role| format!("\"{}\"", role.as_str()))
        .collect();
    Problem::with(
        StatusCode::FORBIDDEN,
        "forbidden",
        "Not with this token",
        format!(
            "This needs a token with the role {}; `oncehook token create NAME --role {first}` makes one.",
            words.join(" or ")
        ),
    )
}

/// The guard.
pub(super) async fn guard(
    access: web::Data<Access>,
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    match access.admit(request.request()).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            let answered = next.call(request).await?;
            Ok(answered.map_into_boxed_body())
        }
        Err(refused) => {
            let answer = access.answer(request.request(), &refused);
            let payload = request.extract::<web::Payload>().await?;
            Ok(request.into_response(early::without_reading(answer, payload)))
        }
    }
}

impl FromRequest for Caller {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    /// What the guard found. A route that is mounted without it refuses everybody.
    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let caller = request.extensions().get::<Self>().cloned();
        ready(caller.ok_or_else(|| {
            InternalError::from_response("no guard", UNAUTHORIZED.response()).into()
        }))
    }
}
