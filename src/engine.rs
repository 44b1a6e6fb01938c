//! The parts put together, for `serve` and for your own application.
