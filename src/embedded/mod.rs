//! A private PostgreSQL for `dev` and for tests.
