//! Chance that can be repeated.

use std::env;

use super::judge::log::now_us;

/// The seed that an environment variable gives, else one of this moment.
pub(crate) fn seed(variable: &str) -> u64 {
    match env::var(variable) {
        Ok(seed) if !seed.is_empty() => seed
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is a number")),
        _ => now_us() % 1_000_000,
    }
}

/// A number that follows from the seed, what it is for, and a purpose alone.
pub(crate) fn dice(seed: u64, n: u64, purpose: u64) -> u64 {
    let mut mixed = seed ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose.rotate_left(32);
    for factor in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}
