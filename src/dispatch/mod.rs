//! A ready delivery becomes its outcome.

pub mod handler;

pub use handler::{HandlerKind, HandlerSpec, HttpTarget};
