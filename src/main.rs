//! The `oncehook` binary.

fn main() {}
