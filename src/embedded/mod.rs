//! What `oncehook dev` and the tests bring along: a private PostgreSQL cluster, and a payment provider to try
//! calls against ([`Charges`]).
//!
//! The cluster: it finds PostgreSQL on the machine (or fetches it), initialises a data folder, runs the server
//! as an unprivileged user on a Unix socket that nobody else can enter, and ends it with its
//! owner. It opens no TCP port and never touches another cluster of the machine.
//!
//! ```no_run
//! use oncehook::embedded::{Cluster, Options};
//!
//! let mut cluster = Cluster::start(Options::new(".oncehook/postgresql"))?;
//! if let Some(moved) = cluster.moved() {
//!     eprintln!("{moved}");
//! }
//! println!("{}", cluster.url("postgres"));
//! cluster.stop()?;
//! # Ok::<(), oncehook::embedded::EmbeddedError>(())
//! ```
//!
//! Everything of it blocks except [`Cluster::create_database`]: call it from a blocking task.

mod account;
mod binaries;
mod charges;
mod cluster;
mod error;
mod fetch;
mod guard;
mod place;
mod postmaster;
mod server;

pub use binaries::{Binaries, Search};
pub use charges::{Charge, Charges, Conduct, Count};
pub use cluster::{Cluster, Options, wipe};
pub use error::EmbeddedError;
pub use place::{Moved, MovedReason};
