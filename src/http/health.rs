//! Whether the process lives, whether it can take webhooks, and its numbers.

use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, web};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::engine::Engine;

use super::problem::Problem;

/// A balancer that asks must not wait longer than it would for a dead node.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

const DRAINING: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "draining",
    "Shutting down",
    "This node finishes what it has and takes no new traffic.",
);

const UNWRITABLE: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "not-ready",
    "Database not writable",
    "A test write did not succeed. Webhooks are answered 503 until it does; the log names the cause.",
);

/// Registers `/healthz` and `/readyz`.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(web::resource("/healthz").to(live))
        .service(web::resource("/readyz").to(ready));
}

/// Registers `/metrics`.
pub(super) fn metrics_route(config: &mut web::ServiceConfig) {
    config.service(web::resource("/metrics").to(metrics));
}

async fn live() -> HttpResponse {
    plain("ok\n".to_owned())
}

async fn ready(engine: web::Data<Engine>) -> HttpResponse {
    if engine.is_draining() {
        return DRAINING.response();
    }
    match tokio::time::timeout(READY_TIME_MAX, engine.ready()).await {
        Ok(Ok(())) => plain("ready\n".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(error = %error, "not ready: the test write failed");
            UNWRITABLE.response()
        }
        Err(_) => {
            tracing::warn!("not ready: the test write took too long");
            UNWRITABLE.response()
        }
    }
}

async fn metrics(handle: web::Data<PrometheusHandle>) -> HttpResponse {
    plain(handle.render())
}

fn plain(text: String) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .body(text)
}
