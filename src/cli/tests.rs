use clap::CommandFactory as _;

use super::*;
use crate::config::{Config, Environment};
use crate::store::StoreError;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn help_reads_well() {
    let mut command = Cli::command().term_width(100);
    insta::assert_snapshot!(command.render_long_help().to_string());
}

#[test]
fn help_of_every_verb_reads_well() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let pages: Vec<_> = command
        .get_subcommands_mut()
        .filter(|verb| verb.get_name() != "help")
        .map(|verb| verb.render_long_help().to_string())
        .collect();
    insta::assert_snapshot!(pages.join("\n----\n"));
}

#[test]
fn misuse_is_refused_by_the_parser() {
    for line in [
        "oncehook",
        "oncehook bogus",
        "oncehook show stripe-main",
        "oncehook show a b --raw --json",
        "oncehook replay a b --handler h",
        "oncehook replay a b --handler h --reason ",
        "oncehook replay --missing --handler h --reason r",
        "oncehook replay a b --missing --since 1d --handler h --reason r",
        "oncehook replay a b --dry-run --handler h --reason r",
        "oncehook replay --missing --force --since 1d --handler h --reason r",
        "oncehook replay --list --reason r",
        "oncehook replay --list --show 7",
        "oncehook replay --show 7 --stop 7 --reason r",
        "oncehook replay --stop 7",
        "oncehook replay --list --all --since 1d",
        "oncehook events --limit 0",
        "oncehook events --limit 501",
        "oncehook events --state lost",
        "oncehook simulate a --count 0",
        "oncehook simulate a --list --count 2",
        "oncehook verify --all --since 1d",
        "oncehook verify --limit 0",
        "oncehook verify --since 0",
        "oncehook verify --since 2999-01-01T00:00:00Z",
        "oncehook verify --check-time 100d",
        "oncehook token create shop",
        "oncehook token create local --role read",
        "oncehook token create Shop --role read",
        "oncehook token create shop --role admin",
        "oncehook token create shop --role read --expires 0s",
        "oncehook token revoke 3",
    ] {
        let words = line.split(' ');
        assert!(Cli::try_parse_from(words).is_err(), "{line}");
    }
    for line in [
        "oncehook show a b --json",
        "oncehook --json events --before 0193b3c0-0000-7000-8000-000000000000",
        "oncehook replay a b --handler h --reason r --force --expected-run 2",
        "oncehook replay --missing --since 7d --dry-run --handler h --reason r",
        "oncehook replay --list --json",
        "oncehook replay --show 7",
        "oncehook replay --stop 7 --reason r",
        "oncehook handlers retire h --reason r",
        "oncehook serve --migrate --announce",
        "oncehook simulate a b --count 3 --id x --payload -",
        "oncehook verify --json --since 1h --patience 0 --check-time 10s",
        "oncehook verify --all --digests --limit 20",
        "oncehook token create shop --role read --role submit --expires 90d --json",
        "oncehook token revoke 3 --reason r",
    ] {
        Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn failures_say_cause_and_hint_and_exit_code() {
    let invalid = Config::parse(
        "[listen]\napi = \"localhost:1\"\nprot = 1\n",
        std::path::Path::new("oncehook.toml"),
        &Environment::default(),
    )
    .unwrap_err();
    let failures: Vec<Failure> = vec![
        invalid.into(),
        StoreError::Unavailable("timed out after 1 s".into()).into(),
        StoreError::NotFound("source \"x\" has no event \"y\"".into()).into(),
        StoreError::Refused("run 1 is live".into()).into(),
        Failure::new(Exit::No, std::io::Error::other("address in use"))
            .context("cannot listen on 127.0.0.1:8080")
            .hint("name another")
            .hint("never seen: the first hint is nearest to the cause"),
    ];
    let texts: Vec<_> = failures
        .iter()
        .map(|failure| format!("{}\n(exit {})", failure.text(), failure.exit() as u8))
        .collect();
    insta::assert_snapshot!(texts.join("\n\n"));
}
