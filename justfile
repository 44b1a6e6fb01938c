# `just` lists the commands.

set shell := ["bash", "-euc"]

_default:
    @just --list --unsorted

# Everything, on a PostgreSQL that it starts itself. `just test f46` runs a part.
test *filter:
    cargo test {{ filter }}

# Clippy with warnings as errors, with and without the command line; then the documentation.
lint:
    cargo clippy --all-targets -- -D warnings
    cargo clippy --no-default-features --lib -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

# Formats the code.
fmt:
    cargo fmt

# A private PostgreSQL, sample sources and handlers; Ctrl-C stops everything. `just dev --fresh` begins anew.
dev *flags:
    cargo run -- dev {{ flags }}

# Ingest and end-to-end handling against plain inserts, in one run.
bench:
    cargo bench

# Licences, forbidden crates, sources of crates.
deny:
    cargo deny check bans licenses sources

# What CI runs.
ci:
    .ci/run

# Takes each guard out of a copy and sees its test fail; `ONCEHOOK_GUARDS=all just guards` for all.
guards:
    cargo test --test it -- --ignored --nocapture guards::run
