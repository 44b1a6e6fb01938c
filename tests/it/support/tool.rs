//! Tools that not every machine has.

use std::io::Write as _;

/// Says that a test is left out for want of a tool. Fails where `ONCEHOOK_MUST` names it, in a list
/// with commas, or is `all`: there it was installed, and a test that passes has run.
pub(crate) fn missing(tool: &str, package: &str) {
    let must = std::env::var("ONCEHOOK_MUST").unwrap_or_default();
    let says = format!("{tool} is not installed; on Debian: apt install {package}");
    assert!(!is_named(&must, tool), "{says} (ONCEHOOK_MUST={must})");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not by `eprintln!`, which the harness keeps to itself when a test passes.
    drop(writeln!(
        std::io::stderr().lock(),
        "SKIPPED: {test}: {says}"
    ));
}

pub(crate) fn is_named(must: &str, tool: &str) -> bool {
    must.split(',')
        .map(str::trim)
        .any(|named| named == "all" || named == tool)
}
