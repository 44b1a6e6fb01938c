//! oncehook: a webhook inbox for payments on PostgreSQL.
//!
//! A webhook is verified over the exact bytes received, stored once under a unique constraint,
//! acknowledged only after the commit, and handled exactly once.
//!
//! The modules stand in import order: each uses only those before it.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`domain`] | pure decisions: keys, digests, the delivery state machine, retry schedule |
//! | [`provider`] | one sender's dialect: raw bytes in, verified items out |
//! | [`store`] | everything that speaks to PostgreSQL |
//! | [`ingest`] | verified items become a durable receipt |
//! | [`dispatch`] | a ready delivery becomes its outcome |
//! | [`engine`] | the parts put together, for `serve` and for your own application |
//! | [`http`] | the actix-web routes |
//!
//! The binary is described in the repository's README. As a library, the same engine runs inside
//! an actix-web application of yours, in your database:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use actix_web::{App, HttpServer};
//! use oncehook::{
//!     Answer, Delivered, DispatchConfig, Engine, EngineConfig, Function, HandlerError, HandlerKind,
//!     HandlerSpec, Inbox, Limits, Pattern, Settings, Source, Store, Work, async_trait, migrate,
//! };
//!
//! /// Marks an order as paid, in the transaction that records the outcome.
//! struct MarkPaid;
//!
//! #[async_trait]
//! impl Function for MarkPaid {
//!     async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
//!         work.execute("INSERT INTO paid (event_key) VALUES ($1)", &[&event.key]).await?;
//!         Ok(Answer::Done)
//!     }
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings::parse("postgresql://shop@localhost/shop")?;
//! migrate::run(&settings).await?;
//! let engine = Engine::start(
//!     Store::new(settings, 4)?,
//!     EngineConfig {
//!         sources: vec![Source::new("stripe-main", "stripe", &[("2026-11", "whsec_...")])?],
//!         handlers: vec![HandlerSpec::new(
//!             "mark-paid",
//!             vec![Pattern::parse("stripe-main:payment_intent.succeeded")?],
//!             HandlerKind::Function(Arc::new(MarkPaid)),
//!         )],
//!         dispatch: Some(DispatchConfig::default()),
//!         ..EngineConfig::default()
//!     },
//! )
//! .await?;
//!
//! let inbox = Inbox::new(engine.clone(), Limits::default());
//! HttpServer::new(move || App::new().service(inbox.scope()))
//!     .bind("127.0.0.1:8080")?
//!     .run()
//!     .await?;
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` is the whole of it, with routes of the application's own. Crate users who
//! do not need the command line leave out the default feature `cli`.

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod config;
pub mod dispatch;
pub mod domain;
#[cfg(feature = "cli")]
pub mod embedded;
pub mod engine;
pub mod http;
pub mod ingest;
pub mod provider;
pub mod store;
pub mod telemetry;

pub use async_trait::async_trait;
pub use dispatch::{
    Answer, Delivered, DispatchConfig, Emit, External, Function, HandlerError, HandlerKind,
    HandlerSpec, HttpProbe, HttpTarget, HttpUnknown, Settle, SpecError, Work,
};
pub use domain::{Pattern, Policy, ProbeSchedule, Probed, RetryPolicy};
pub use engine::{Engine, EngineConfig};
pub use http::{Inbox, Limits};
pub use provider::Source;
pub use store::{Settings, Store, migrate};
/// The version whose types [`Work`] takes and returns.
pub use tokio_postgres;
