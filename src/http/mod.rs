//! The actix-web routes.
