//! The parts of the benchmark.

mod cpu;
pub(crate) mod legs;
mod load;
pub(crate) mod machine;
mod node;
mod pgbench;
pub(crate) mod postgres;
pub(crate) mod report;
pub(crate) mod statements;
mod stripe;
