//! Handlers and sources as they stand, on the API listener; pausing and resuming them.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use crate::dispatch::BreakerState;
use crate::domain::Caller;
use crate::engine::Engine;
use crate::store::flow::{HandlerInfo, Pausable};

use super::early;
use super::events::{answer, command, invalid, only_get};
use super::problem::Problem;

/// Registers `/v1/handlers`, `/v1/sources` and what is below them.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/v1/handlers")
                .route(web::get().to(handlers))
                .default_service(web::to(only_get)),
        )
        .service(
            web::resource("/v1/sources")
                .route(web::get().to(sources))
                .default_service(web::to(only_get)),
        )
        .service(
            web::resource("/v1/{kind:handlers|sources}/{name}/{verb:pause|resume}").to(switch),
        );
}

/// A handler with what this node knows of it.
#[derive(Debug, Serialize)]
struct HandlerHere {
    #[serde(flatten)]
    handler: HandlerInfo,
    /// `closed`, `half-open` or `open` on this node; none for a handler without one.
    breaker: Option<&'static str>,
}

async fn handlers(engine: web::Data<Engine>) -> HttpResponse {
    let found = engine.store().handlers().await;
    let here = |handler: HandlerInfo| HandlerHere {
        breaker: engine.breaker(handler.id).map(BreakerState::as_str),
        handler,
    };
    answer(found.map(|all| all.into_iter().map(here).collect::<Vec<_>>()))
}

async fn sources(engine: web::Data<Engine>) -> HttpResponse {
    answer(engine.store().sources().await)
}

/// A pause or its end, as asked for.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    #[serde(default)]
    reason: Option<String>,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Switched {
    name: String,
    paused: bool,
}

async fn switch(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<(String, String, String)>,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let wanted = match command(&request, &mut payload).await {
        Ok(body) => match parse(&body) {
            Ok(wanted) => wanted,
            Err(problem) => return early::without_reading(problem.response(), payload),
        },
        Err(answer) => return early::without_reading(answer, payload),
    };
    let (kind, name, verb) = path.into_inner();
    let what = match kind.as_str() {
        "handlers" => Pausable::Handler,
        _ => Pausable::Source,
    };
    let (store, reason) = (engine.store(), wanted.reason.as_deref());
    let paused = verb == "pause";
    let done = if paused {
        store.pause(what, &name, reason, &caller.actor()).await
    } else {
        store.resume(what, &name, reason, &caller.actor()).await
    };
    engine.look_for_pauses();
    answer(done.map(|()| Switched { name, paused }))
}

fn parse(body: &[u8]) -> Result<Switch, Problem> {
    let wanted: Switch = serde_json::from_slice(body).map_err(|error| {
        invalid(format!(
            "The body must be {{\"reason\": text}}, or {{}}: {error}."
        ))
    })?;
    if wanted.reason.as_ref().is_some_and(|r| r.contains('\0')) {
        return Err(invalid("The reason must not hold NUL.".to_owned()));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_may_have_a_reason_and_knows_no_other_member() {
        let reason = Some("migration".to_owned());
        assert_eq!(parse(br#"{"reason":"migration"}"#), Ok(Switch { reason }));
        assert_eq!(parse(b"{}"), Ok(Switch { reason: None }));
        for wrong in [
            &b""[..],
            br#"{"reason":7}"#,
            br#"{"why":"x"}"#,
            br#"{"reason":"\u0000"}"#,
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
