//! Bulk replays, on the API listener: counted, started, looked at, stopped, continued, given up.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::domain::{Caller, Ending};
use crate::engine::Engine;
use crate::store::bulk::{self, BulkOrder, BulkWord, Candidates, ReplayFilter};

use super::early;
use super::events::{Command, answer, command, failed, invalid, method_not_allowed, parse};
use super::problem::Problem;

/// Registers `/v1/replays` and what is below it.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/v1/replays")
                .route(web::get().to(list))
                .route(web::post().to(start))
                .default_service(web::to(get_or_post)),
        )
        .service(
            web::resource("/v1/replays/{bulk}")
                .route(web::get().to(one))
                .default_service(web::to(super::events::only_get)),
        )
        .service(web::resource("/v1/replays/{bulk}/{verb:stop|continue|give-up}").to(tell));
}

/// A bulk replay, as asked for.
#[expect(clippy::struct_excessive_bools, reason = "each is a member of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    /// No default: to count and to run are two things.
    dry_run: bool,
    reason: String,
    since: Timestamp,
    #[serde(default)]
    until: Option<Timestamp>,
    #[serde(default)]
    source: Option<String>,
    #[serde(default, rename = "type")]
    event_type: Option<String>,
    #[serde(default)]
    handler: Option<String>,
    #[serde(default)]
    every_handler: bool,
    #[serde(default = "dead")]
    results: Vec<String>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    verify_bytes: bool,
    #[serde(default = "rate")]
    rate: u32,
    #[serde(default)]
    anew: bool,
}

fn dead() -> Vec<String> {
    vec![Ending::Dead.as_str().to_owned()]
}

fn rate() -> u32 {
    bulk::RATE
}

impl Command for Start {
    const FORM: &'static str = "{\"dry_run\": bool, \"reason\": text, \"since\": time, \"handler\": text or \"every_handler\": true}, and may hold \
        \"until\": time, \"source\": text, \"type\": text, \"results\": [text], \"force\": bool, \"verify_bytes\": bool, \"rate\": number, \"anew\": bool";

    fn texts(&self) -> Vec<&str> {
        let optional = [&self.source, &self.event_type, &self.handler];
        let optional = optional.into_iter().filter_map(Option::as_deref);
        optional.chain([self.reason.as_str()]).collect()
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

impl Start {
    fn order(self, caller: &Caller) -> Result<BulkOrder, Problem> {
        if self.handler.is_some() == self.every_handler {
            return Err(invalid(
                "Name a handler, or say \"every_handler\": true, one of the two.".to_owned(),
            ));
        }
        if !(1..=bulk::RATE_MAX).contains(&self.rate) {
            return Err(invalid(format!(
                "rate is new runs per second, a number from 1 to {}.",
                bulk::RATE_MAX
            )));
        }
        let results: Option<Vec<Ending>> = self.results.iter().map(|w| Ending::named(w)).collect();
        let results = results.ok_or_else(|| {
            invalid("results are of dead, failed, skipped, cancelled and succeeded.".to_owned())
        })?;
        let filter = ReplayFilter {
            source: self.source,
            event_type: self.event_type,
            handler: self.handler,
            results,
            since: self.since,
            until: self.until,
        };
        filter
            .check(self.force)
            .map_err(|text| invalid(format!("Not possible: {text}.")))?;
        Ok(BulkOrder {
            filter,
            force: self.force,
            verify_bytes: self.verify_bytes,
            rate: self.rate,
            anew: self.anew,
            reason: self.reason,
            actor: caller.actor(),
        })
    }
}

/// What would run.
#[derive(Debug, Serialize)]
struct Counted {
    runs: u64,
    candidates: Vec<Candidates>,
}

/// What was started. Everything in it is known when it is committed.
#[derive(Debug, Serialize)]
struct Started {
    bulk: i64,
}

async fn start(
    caller: Caller,
    request: HttpRequest,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let wanted: Start = match command(&request, &mut payload).await {
        Ok(body) => match parse(&body) {
            Ok(wanted) => wanted,
            Err(problem) => return early::without_reading(problem.response(), payload),
        },
        Err(answer) => return early::without_reading(answer, payload),
    };
    let dry_run = wanted.dry_run;
    let order = match wanted.order(&caller) {
        Ok(order) => order,
        Err(problem) => return problem.response(),
    };
    if dry_run {
        let counted = engine.store().count_replays(&order.filter).await;
        return answer(counted.map(|candidates| Counted {
            runs: candidates.iter().map(|c| c.runs).sum(),
            candidates,
        }));
    }
    match engine.store().start_bulk(&order).await {
        Ok(bulk) => HttpResponse::Accepted()
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .insert_header((header::LOCATION, format!("/v1/replays/{bulk}")))
            .json(Started { bulk }),
        Err(error) => failed(&error),
    }
}

async fn list(engine: web::Data<Engine>) -> HttpResponse {
    answer(engine.store().bulk_replays().await)
}

async fn one(path: web::Path<String>, engine: web::Data<Engine>) -> HttpResponse {
    match path.parse() {
        Ok(bulk) => answer(engine.store().bulk_details(bulk).await),
        Err(_) => NO_NUMBER.response(),
    }
}

/// A word to a bulk replay, and why.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tell {
    reason: String,
}

impl Command for Tell {
    const FORM: &'static str = "{\"reason\": text}";

    fn texts(&self) -> Vec<&str> {
        vec![&self.reason]
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

async fn tell(
    caller: Caller,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    mut payload: web::Payload,
    engine: web::Data<Engine>,
) -> HttpResponse {
    let wanted: Tell = match command(&request, &mut payload).await {
        Ok(body) => match parse(&body) {
            Ok(wanted) => wanted,
            Err(problem) => return early::without_reading(problem.response(), payload),
        },
        Err(answer) => return early::without_reading(answer, payload),
    };
    let (bulk, verb) = path.into_inner();
    let Ok(bulk) = bulk.parse() else {
        return NO_NUMBER.response();
    };
    let word = match verb.as_str() {
        "stop" => BulkWord::Stop,
        "continue" => BulkWord::Continue,
        _ => BulkWord::GiveUp,
    };
    let told = engine
        .store()
        .tell_bulk(bulk, word, &wanted.reason, &caller.actor())
        .await;
    answer(told.map(|()| Started { bulk }))
}

async fn get_or_post(_request: HttpRequest, payload: web::Payload) -> HttpResponse {
    early::without_reading(method_not_allowed("GET, POST"), payload)
}

const NO_NUMBER: Problem = Problem::fixed(
    StatusCode::NOT_FOUND,
    "not-found",
    "Not found",
    "A bulk replay is named by its number; GET /v1/replays lists them.",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn order(body: &str) -> Result<BulkOrder, Problem> {
        parse::<Start>(body.as_bytes()).and_then(|start| start.order(&Caller::local()))
    }

    #[test]
    fn what_is_left_out_is_narrow_and_slow() {
        let body =
            r#"{"dry_run":false,"reason":"x","since":"2026-12-01T00:00:00Z","handler":"ledger"}"#;
        let order = order(body).unwrap();
        assert_eq!(order.filter.results, [Ending::Dead]);
        assert_eq!(
            (order.rate, order.force, order.verify_bytes, order.anew),
            (bulk::RATE, false, false, false)
        );
        assert_eq!((order.filter.until, order.filter.source), (None, None));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let common = r#""reason":"x","since":"2026-12-01T00:00:00Z""#;
        for rest in [
            // Counted or run must be said.
            r#""handler":"ledger""#,
            r#""dry_run":false"#,
            r#""dry_run":false,"handler":"ledger","every_handler":true"#,
            r#""dry_run":false,"every_handler":true,"results":["lost"]"#,
            r#""dry_run":false,"every_handler":true,"results":[]"#,
            r#""dry_run":false,"every_handler":true,"results":["succeeded"]"#,
            r#""dry_run":false,"every_handler":true,"rate":0"#,
            r#""dry_run":false,"every_handler":true,"rate":10001"#,
            r#""dry_run":false,"every_handler":true,"until":"2026-11-01T00:00:00Z""#,
            r#""dry_run":false,"every_handler":true,"handlers":"x""#,
            r#""dry_run":false,"every_handler":true,"type":"a\u0000""#,
        ] {
            let body = format!("{{{common},{rest}}}");
            assert!(order(&body).is_err(), "{body}");
        }
        let forced = format!(
            r#"{{{common},"dry_run":true,"every_handler":true,"results":["succeeded"],"force":true}}"#
        );
        assert!(order(&forced).is_ok());
    }
}
