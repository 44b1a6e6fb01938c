//! What the tests stand on.
//!
//! - [`TestDb`]: a database of its own for each test, cloned from a migrated template of one
//!   shared cluster ([`shared`]).
//! - [`FakeClock`]: another clock for a child process, which steps when told.
//! - [`bouncer::PgBouncer`]: a pooler in front of a database.
//! - [`OwnCluster`]: a whole PostgreSQL, for tests that stop, kill or starve it.
//! - [`Replicas`]: a primary and two standbys that stream from it, to fail over between.
//! - [`TestApp`]: real nodes (`oncehook serve`) on a [`TestDb`], as child processes.
//! - [`PgProxy`]: between node and database, to cut, freeze and delay at a chosen statement.
//! - [`Receiver`]: the service behind an `http` handler.
//! - [`RawHttp`]: requests that no proper client would send.
//! - [`judge`]: compares what was seen outside with what is stored and booked.
//! - [`dice`]: chance that a seed repeats.
//! - [`leash::Leashed`]: a child process that ends with the test process.
//! - [`tool::missing`]: what a test does where its tool is missing.
//! - [`until`]: waits for evidence, with a deadline.
#![allow(
    dead_code,
    unused_imports,
    reason = "a helper serves the modules that need it, and not each is needed all the time"
)]

pub(crate) mod app;
pub(crate) mod bouncer;
pub(crate) mod cli;
pub(crate) mod clock;
pub(crate) mod database;
pub(crate) mod dice;
pub(crate) mod inbox;
pub(crate) mod judge;
pub(crate) mod leash;
pub(crate) mod node;
pub(crate) mod own;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod receiver;
pub(crate) mod replicas;
pub(crate) mod shared;
pub(crate) mod signer;
pub(crate) mod tool;
pub(crate) mod wait;

pub(crate) use app::{AppBuilder, TestApp};
pub(crate) use cli::{Ran, oncehook};
pub(crate) use clock::FakeClock;
pub(crate) use database::{TestDb, backend_pid, connect};
pub(crate) use node::Node;
pub(crate) use own::OwnCluster;
pub(crate) use proxy::{Action, PgProxy};
pub(crate) use raw::RawHttp;
pub(crate) use receiver::{Gate, Received, Receiver, Reply};
pub(crate) use replicas::Replicas;
pub(crate) use wait::{until, until_some};
