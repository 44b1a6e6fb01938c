//! Operations: what a client of your own API is promised.

mod inner_races;
mod inner_runs;
mod wire;
mod wire_answers;
mod wire_crowd;
mod wire_losses;
mod wire_refused;
mod wire_status;
