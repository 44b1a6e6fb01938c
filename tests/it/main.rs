//! The whole suite, over real sockets and a real PostgreSQL: one module per capability.
//!
//! Nothing has to run beforehand; see `support` for what the tests stand on.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in a test, helpers included, a broken expectation is a failure with a place"
)]

mod access;
mod check;
mod crash;
mod dispatch;
mod embed;
mod embedded;
mod failover;
mod faults;
mod flow;
mod guards;
mod handlers;
mod harness;
mod health;
mod http;
mod interleave;
mod judge;
mod lanes;
mod names;
mod operations;
mod otherdb;
mod outbox;
mod postgres;
mod readme;
mod rename;
mod replay;
mod schema;
mod soak;
mod support;
mod sweep;
mod tidy;
mod tls;
mod uncertain;
mod verify;
