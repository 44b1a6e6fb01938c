//! The webhook routes, to be mounted anywhere, with limits that travel with them.

use std::sync::Arc;
use std::time::Duration;

use actix_web::{Scope, web};

use crate::engine::Engine;

use super::body::Budget;
use super::webhook;

/// What one request, and all bodies together, may cost before a signature has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest body in bytes as on the wire (`limits.body`); one more is answered 413.
    pub body_bytes: usize,
    /// Request line and header fields together, in bytes (`limits.headers`); above it 431.
    /// actix itself answers 431 above 96 fields or 128 KiB, whatever stands here.
    pub header_bytes: usize,
    /// Time for the whole body to arrive (`limits.body_time`); after it 408.
    pub body_time: Duration,
    /// Bytes of all bodies being read at one moment; above it 503. Never less than one body.
    pub reading_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1 << 20,
            header_bytes: 64 << 10,
            body_time: Duration::from_secs(30),
            reading_bytes: 64 << 20,
        }
    }
}

/// The webhook routes of one engine. Clones share one budget of bytes being read, so make one and
/// clone it into the factory that actix calls per worker.
///
/// # Examples
///
/// ```no_run
/// # async fn run(engine: oncehook::engine::Engine) -> std::io::Result<()> {
/// use actix_web::{App, HttpServer};
/// use oncehook::http::{Inbox, Limits};
///
/// let inbox = Inbox::new(engine, Limits::default());
/// HttpServer::new(move || App::new().service(inbox.scope()))
///     .bind("127.0.0.1:8080")?
///     .run()
///     .await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Inbox {
    pub(super) engine: Engine,
    pub(super) limits: Limits,
    pub(super) budget: Arc<Budget>,
}

impl Inbox {
    /// Routes for the engine under these limits.
    pub fn new(engine: Engine, limits: Limits) -> Self {
        let budget = Arc::new(Budget::new(limits.reading_bytes.max(limits.body_bytes)));
        Self {
            engine,
            limits,
            budget,
        }
    }

    /// `POST /webhooks/{source}`, with and without a slash at the end, to be registered as a
    /// service. It reads the body as it came over the wire, whatever payload settings, JSON limits
    /// or decompression the surrounding application has. Middleware that answers redirects or
    /// rewrites paths does not belong in front of it: senders count a redirect as a failure.
    pub fn scope(&self) -> Scope {
        web::scope("/webhooks")
            .app_data(web::Data::new(self.clone()))
            .service(web::resource(["/{source}", "/{source}/"]).to(webhook::receive))
            .default_service(web::to(webhook::receive))
    }
}

/// The webhook routes with default limits. Each call has a byte budget of its own: with several
/// workers, share one [`Inbox`] instead.
pub fn scope(engine: Engine) -> Scope {
    Inbox::new(engine, Limits::default()).scope()
}
