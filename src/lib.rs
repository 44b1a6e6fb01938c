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
