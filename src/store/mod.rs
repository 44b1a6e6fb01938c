//! Everything that speaks to PostgreSQL, and the only place with SQL.

pub mod error;
pub mod query;

pub use error::StoreError;
