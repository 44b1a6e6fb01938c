//! Two listeners: webhooks in public, status and commands behind tokens or on loopback.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer, middleware, web};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinHandle;

use crate::engine::Engine;
use crate::store::StoreError;

use super::auth::{self, Access};
use super::inbox::{Inbox, Limits};
use super::operations::{self, Desk};
use super::{early, events, flow, health, replays};

/// Worker threads of the public listener.
const PUBLIC_WORKERS: usize = 2;

/// Worker threads of the API listener.
const API_WORKERS: usize = 1;

/// On every answer: nothing we send is to be taken for a page.
const NOSNIFF: (&str, &str) = ("X-Content-Type-Options", "nosniff");

/// Open connections per worker; further ones wait in the backlog. Bounds what half-sent heads
/// can hold (up to 128 KiB each).
const CONNECTIONS_MAX: usize = 2_048;

/// For the head of a connection's first request; then actix answers 408.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// Longer than the idle time of common balancers (60 s), so that it is they who close: a request
/// sent into a connection that we close at the same moment is lost.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// How long a sender that is refused early may go on sending into the void, so that it reads the
/// answer instead of a reset.
const LINGER: Duration = Duration::from_secs(1);

/// What actix waits for open connections; [`Running::stop`] has its own, shorter limit.
const SHUTDOWN_S_MAX: u64 = 3_600;

/// Where to listen and what a request may cost.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Webhooks and health.
    pub public: SocketAddr,
    /// Status, commands, metrics and health. Anything but a loopback address needs a token in the
    /// database.
    pub api: SocketAddr,
    /// Longest body in bytes.
    pub body_bytes: usize,
    /// Request line and header fields together, in bytes.
    pub header_bytes: usize,
    /// Time for a body to arrive.
    pub body_time: Duration,
    /// Where `/metrics` reads; without it there is no `/metrics`.
    pub metrics: Option<PrometheusHandle>,
}

/// Both listeners at work. Dropping it leaves them running; [`Running::stop`] ends them.
#[derive(Debug)]
pub struct Running {
    engine: Engine,
    public: Listener,
    api: Listener,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    handle: ServerHandle,
    task: JoinHandle<io::Result<()>>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The API listener can be reached from elsewhere, and there is no token to tell who asks.
    #[error(
        "the API listener may be at {0}, which is no loopback address, only once there is a token"
    )]
    NoToken(SocketAddr),
    /// It cannot be found out whether there is a token.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] io::Error),
}

/// Binds both addresses and serves them. Must be called inside a Tokio runtime; the workers have
/// threads of their own. Signals are left to the caller.
///
/// # Errors
///
/// [`ServeError`]; nothing listens.
pub async fn serve(engine: Engine, config: ServeConfig) -> Result<Running, ServeError> {
    let tokens = engine.store().any_token().await;
    let access = if config.api.ip().is_loopback() {
        Access::new(engine.store().clone(), config.api, tokens.ok())
    } else if tokens? {
        Access::new(engine.store().clone(), config.api, Some(true))
    } else {
        return Err(ServeError::NoToken(config.api));
    };
    let limits = Limits {
        body_bytes: config.body_bytes,
        header_bytes: config.header_bytes,
        body_time: config.body_time,
        ..Limits::default()
    };
    Ok(Running {
        public: public(config.public, engine.clone(), limits)?,
        api: api(config.api, engine.clone(), access, limits, config.metrics)?,
        engine,
    })
}

fn public(address: SocketAddr, engine: Engine, limits: Limits) -> io::Result<Listener> {
    let inbox = Inbox::new(engine.clone(), limits);
    let engine = web::Data::new(engine);
    Listener::start(address, PUBLIC_WORKERS, move |app| {
        app.app_data(engine.clone())
            .configure(health::routes)
            .service(inbox.scope());
    })
}

fn api(
    address: SocketAddr,
    engine: Engine,
    access: Access,
    limits: Limits,
    metrics: Option<PrometheusHandle>,
) -> io::Result<Listener> {
    let engine = web::Data::new(engine);
    let access = web::Data::new(access);
    let desk = web::Data::new(Desk::new(limits));
    let metrics = metrics.map(web::Data::new);
    Listener::start(address, API_WORKERS, move |app| {
        // Whatever is not health is behind the guard, addresses that are none of ours too.
        let guarded = web::scope("")
            .wrap(middleware::from_fn(auth::guard))
            .configure(events::routes)
            .configure(flow::routes)
            .configure(operations::routes)
            .configure(replays::routes);
        let guarded = match &metrics {
            Some(metrics) => guarded
                .app_data(metrics.clone())
                .configure(health::metrics_route),
            None => guarded,
        };
        app.app_data(engine.clone())
            .app_data(access.clone())
            .app_data(desk.clone())
            .configure(health::routes)
            .service(guarded.default_service(web::to(early::not_found)));
    })
}

impl Listener {
    pub(super) fn start<R>(address: SocketAddr, workers: usize, routes: R) -> io::Result<Self>
    where
        R: Fn(&mut web::ServiceConfig) + Clone + Send + 'static,
    {
        let server = HttpServer::new(move || {
            App::new()
                .wrap(middleware::DefaultHeaders::new().add(NOSNIFF))
                .configure(&routes)
                .default_service(web::to(early::not_found))
        })
        .workers(workers)
        .max_connections(CONNECTIONS_MAX)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD_TIME)
        .client_disconnect_timeout(LINGER)
        // A sender that has sent everything and closed its write side still waits for the answer.
        .h1_allow_half_closed(true)
        .shutdown_timeout(SHUTDOWN_S_MAX)
        .disable_signals()
        .bind(address)?;
        let address = server.addrs().first().copied().unwrap_or(address);
        let server = server.run();
        Ok(Self {
            address,
            handle: server.handle(),
            task: tokio::spawn(server),
        })
    }

    /// Lets requests in flight finish; whoever is not done at the end of the grace is cut off.
    pub(super) async fn stop(mut self, grace: Duration) {
        if self.task.is_finished() {
            return;
        }
        if tokio::time::timeout(grace, self.handle.stop(true))
            .await
            .is_err()
        {
            tracing::warn!(address = %self.address, "connections were still open after the grace");
            // Dropping the server forces its workers down.
            self.task.abort();
        }
        if let Ok(Err(error)) = (&mut self.task).await {
            tracing::error!(error = %error, "listener ended with an error");
        }
    }
}

impl Running {
    /// Where webhooks are taken.
    pub fn public_addr(&self) -> SocketAddr {
        self.public.address
    }

    /// Where status is given.
    pub fn api_addr(&self) -> SocketAddr {
        self.api.address
    }

    /// Resolves when a listener ends by itself, which it only does on an error.
    pub async fn ended(&mut self) -> io::Error {
        let ended = tokio::select! {
            ended = &mut self.public.task => ended,
            ended = &mut self.api.task => ended,
        };
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => io::Error::other("a listener stopped"),
            Err(error) => io::Error::other(error),
        }
    }

    /// Stops accepting, lets requests in flight finish, at most for `grace`. Webhooks whose
    /// write has begun are stored even if their connection is cut; clients that wait for an operation
    /// are answered 202.
    pub async fn stop(self, grace: Duration) {
        self.engine.release_waiting();
        tokio::join!(self.public.stop(grace), self.api.stop(grace));
    }
}
