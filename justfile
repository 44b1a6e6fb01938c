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

# A primary that dies, is cut off or comes back, with two standbys (docs/proof/failover.md).
failover:
    cargo test --test it -- failover:: --nocapture

# A private PostgreSQL, sample sources and handlers; Ctrl-C stops everything. `just dev --fresh` begins anew.
dev *flags:
    cargo run -- dev {{ flags }}

# Every protocol message as a crash point, about an hour; goes on where it stopped (target/sweep.jsonl).
sweep:
    cargo test --test it -- --ignored --nocapture --exact sweep::full

# Ingest and end-to-end handling against plain inserts, in one run.
bench:
    cargo bench

# The model of the core with larger bounds; prints the tables of docs/proof/model.md. `just model 2` allows more faults.
model more="1":
    MODEL_MORE={{ more }} cargo test --release --test model -- --ignored --nocapture

# Every order of statements of two and three sessions; `ONCEHOOK_SWITCHES=2 just interleave` bounds it: docs/proof/interleavings.md.
interleave:
    cargo test --test it -- --ignored --nocapture --exact interleave::every_order

# Receivers of every kind under random kills and cuts, again and again: docs/proof/judge.md.
world runs="20":
    WORLD_RUNS={{ runs }} cargo test --test it -- --ignored --exact judge::world::again_and_again --nocapture

# Half of the capacity for so long, with faults meanwhile: docs/proof/soak.md.
soak time="30m":
    SOAK_FOR={{ time }} cargo test --release --test it -- --ignored --exact soak::the_soak --nocapture

# What `oncehook verify` costs over a million events: docs/guarantees.md.
verify-cost events="1000000":
    ONCEHOOK_VERIFY_EVENTS={{ events }} cargo test --test it -- --ignored --exact verify::cost::over_a_million_events --nocapture

# What a bulk replay reads among a million events: docs/performance.md.
replay-cost events="1000000":
    ONCEHOOK_REPLAY_EVENTS={{ events }} cargo test --test it -- --ignored --exact replay::cost::over_a_million_events --nocapture

# What a lane costs that a million deliveries wait in: docs/performance.md.
lane-cost blocked="1000000":
    ONCEHOOK_LANE_BLOCKED={{ blocked }} cargo test --release --test it -- --ignored --exact lanes::cost::behind_two_lanes --nocapture

# Licences, forbidden crates, sources of crates.
deny:
    cargo deny check bans licenses sources

# What CI runs.
ci:
    .ci/run

# Takes each guard out of a copy and sees its test fail; `ONCEHOOK_GUARDS=all just guards` for all.
guards:
    cargo test --test it -- --ignored --nocapture guards::run
