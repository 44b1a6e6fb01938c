//! The actix-web routes: webhooks in, status out.
//!
//! Two listeners: the public one takes webhooks, the API one answers people and programs that show a
//! token, or, where there are no tokens, whoever is on this machine. [`serve`] runs both;
//! [`scope`] or [`Inbox`] mounts the webhook routes in an application of your own, limits included.
//!
//! What it never does: decide, speak SQL, answer 2xx before the engine has committed, answer 5xx
//! other than 503, redirect, or write a header value or a body byte into a log.

mod answer;
mod auth;
mod body;
mod early;
mod events;
mod filter;
mod flow;
mod health;
mod inbox;
mod incoming;
mod operation_status;
mod operations;
mod problem;
mod replays;
mod server;
mod wait;
mod webhook;
#[cfg(test)]
mod wire_tests;

pub use inbox::{Inbox, Limits, scope};
pub use operation_status::{Answered, Ended, Status};
pub use server::{Running, ServeConfig, ServeError, serve};
