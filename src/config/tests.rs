use std::path::Path;
use std::time::Duration;

use super::*;
use crate::dispatch::{HandlerKind, HttpUnknown};
use crate::domain::operation::{OnFailure, OperationSpec, Profile};
use crate::domain::{Policy, ProbeSchedule, RetryPolicy};

mod mistakes;

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn environment() -> Environment {
    [
        ("DATABASE_URL", "postgresql://app:hunter2@db/oncehook"),
        ("STRIPE_WEBHOOK_SECRET", WHSEC),
        ("SHOP_SECRET", "f3b1c0de5a7e9f8812aa34"),
        ("FULFILMENT_SECRET", WHSEC),
        ("EMPTY", ""),
        ("SHORT", "abc123"),
    ]
    .into_iter()
    .collect()
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("oncehook.toml"), &environment())
}

fn errors(text: &str) -> String {
    let error = parse(text).expect_err("an invalid configuration was accepted");
    let lines: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
    assert!(!lines.is_empty());
    for line in &lines {
        assert!(
            !line.contains("abc123") && !line.contains("hunter2"),
            "a secret is shown: {line}"
        );
    }
    lines.join("\n")
}

/// A whole configuration with one stripe source and one sql handler, whose lines can be replaced.
fn with(source: &str, handler: &str) -> String {
    let source = format!(
        "[[source]]\nname = \"main\"\nprovider = \"stripe\"\n{}",
        if source.contains("secrets") {
            source.to_owned()
        } else {
            format!("secrets = [{{ label = \"a\", value = \"{WHSEC}\" }}]\n{source}")
        }
    );
    let handler = if handler.is_empty() {
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\n"
    } else {
        handler
    };
    format!("[database]\nurl = \"env:DATABASE_URL\"\n{source}\n{handler}")
}

/// Keys of an operation whose value in the reference file is the default.
const OF_OPERATIONS: [&str; 5] = ["wait ", "wait_max", "profile", "on_failure", "keep_key"];

const HTTP: &str = "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://h/x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"retry\"\n";

#[test]
fn the_reference_file_is_a_configuration_and_says_the_defaults_in_use() {
    let reference = parse(REFERENCE).unwrap();
    assert_eq!(reference.warnings, []);
    // Without a word about them, the scalar tables and the optional keys are what the file says.
    let short = REFERENCE
        .lines()
        .filter(|line| {
            ![
                "on_conflict",
                "timeout ",
                "lease",
                "batch",
                "crashes",
                "retry ",
                "concurrency",
                "breaker",
                "priority",
            ]
            .iter()
            .any(|key| line.starts_with(key))
        })
        .filter(|line| !OF_OPERATIONS.iter().any(|key| line.starts_with(key)))
        .collect::<Vec<_>>()
        .join("\n");
    let start = short.find("\n[listen]").unwrap();
    let end = short.find("# A registered sender").unwrap();
    let short = format!("{}{}", &short[..start], &short[end..]);
    let bare = parse(&short).unwrap();
    assert_eq!(bare.listen, reference.listen);
    assert_eq!(bare.limits, reference.limits);
    assert_eq!(bare.dispatch, reference.dispatch);
    assert_eq!(bare.log, reference.log);
    for (a, b) in bare.sources.iter().zip(&reference.sources) {
        assert_eq!(a.source.on_conflict, b.source.on_conflict);
        assert_eq!(a.source.accept_modes, b.source.accept_modes);
    }
    assert_eq!(bare.handlers.len(), 2);
    for (a, b) in bare.handlers.iter().zip(&reference.handlers) {
        assert_eq!(
            (a.policy, a.timeout, a.lease, a.batch, a.concurrency),
            (b.policy, b.timeout, b.lease, b.batch, b.concurrency)
        );
        assert_eq!(
            (a.cap, &a.priorities, a.breaker, a.retry_share),
            (b.cap, &b.priorities, b.breaker, b.retry_share)
        );
        assert_eq!(a.probes, b.probes);
    }
    let of = |config: &Config| config.operations[0].operation.clone();
    assert_eq!(of(&bare), of(&reference));
    let defaults = OperationSpec::default();
    let of = of(&reference).unwrap();
    assert_eq!(
        (of.wait, of.wait_max, of.profile, of.on_failure),
        (
            defaults.wait,
            defaults.wait_max,
            defaults.profile,
            defaults.on_failure
        )
    );
    assert_eq!(reference.handlers[0].policy, Policy::default());
    assert_eq!(reference.handlers[0].policy.retry, RetryPolicy::default());
}

#[test]
fn the_reference_file_mentions_every_key_the_reader_knows() {
    let problems = Problems::default();
    assemble(REFERENCE, Path::new("x"), &environment(), &problems).unwrap();
    for key in problems.all_asked() {
        let mentioned = ["[", "[[", "source."]
            .iter()
            .any(|open| REFERENCE.contains(&format!("{open}{key}]")))
            || REFERENCE.contains(&format!("{key} = "));
        assert!(mentioned, "docs/oncehook.toml does not mention {key}");
    }
}

#[test]
fn a_probe_is_read_with_its_defaults_and_with_its_own_settings() {
    let target = |lines: &str| {
        let text = HTTP.replace("on_unknown = \"retry\"", lines);
        let handler = parse(&with("", &text)).unwrap().handlers.remove(0);
        let HandlerKind::Http(target) = handler.kind else {
            panic!("{:?}", handler.kind);
        };
        (target.on_unknown, handler.probes)
    };
    let (short, schedule) =
        target("on_unknown = \"probe\"\nprobe = { url = \"https://h/by-key/{effect_key}?a=1\" }");
    let HttpUnknown::Probe(probe) = short else {
        panic!("{short:?}");
    };
    assert!(!probe.post && !probe.not_found_is_absent, "{probe:?}");
    assert_eq!(probe.url, "https://h/by-key/{effect_key}?a=1");
    assert_eq!(schedule, ProbeSchedule::default());
    let (long, schedule) = target(
        "on_unknown = \"probe\"\nprobe = { url = \"http://h\", method = \"POST\", not_found = \"absent\", after = [\"1s\", \"3s\"] }",
    );
    let HttpUnknown::Probe(probe) = long else {
        panic!("{long:?}");
    };
    assert!(probe.post && probe.not_found_is_absent, "{probe:?}");
    let times = [1, 3].map(Duration::from_secs);
    assert_eq!(schedule.times(), times);
    let (hold, _) = target("on_unknown = \"hold\"");
    assert!(matches!(hold, HttpUnknown::Hold), "{hold:?}");
}

#[test]
fn design_example_is_read() {
    let config = parse(&with(
        "secrets = [{ label = \"2026-11\", value = \"env:STRIPE_WEBHOOK_SECRET\" }, { label = \"old\", value = \"aaaabbbbccccddddeeee\", until = 2999-12-31T00:00:00Z }]\ntolerance = \"5m\"\naccept_modes = [\"live\"]\non_conflict = \"reject\"\nwas = \"before\"",
        &format!("{HTTP}timeout = \"20s\"\nretry = {{ for = \"1d\" }}"),
    ))
    .unwrap();
    let source = &config.sources[0].source;
    assert_eq!(source.secrets.len(), 2);
    assert!(source.secrets[1].until.is_some());
    assert_eq!(source.was.as_deref(), Some("before"));
    let handler = &config.handlers[0];
    assert_eq!(handler.lease, Duration::from_secs(80));
    assert_eq!(handler.policy.retry.span, Duration::from_hours(24));
    assert_eq!(handler.policy.retry.first, Duration::from_secs(5));
    assert!(!format!("{config:?}").contains("MfKQ9r8"));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn variables_win_over_the_file_and_unknown_ones_are_refused() {
    let mut variables = vec![
        ("DATABASE_URL", "postgresql://a/b"),
        ("ONCEHOOK_LISTEN__PUBLIC", "127.0.0.1:0"),
        ("ONCEHOOK_DISPATCH__CONNECTIONS", "7"),
        ("ONCEHOOK_DISPATCH__ENABLED", "false"),
        ("ONCEHOOK_CONFIG", "elsewhere.toml"),
    ];
    let text = with("", "");
    let environment = variables.iter().copied().collect();
    let config = Config::parse(&text, Path::new("x.toml"), &environment).unwrap();
    assert_eq!(config.listen.public.port(), 0);
    assert_eq!(config.dispatch.connections, 7);
    assert!(!config.dispatch.enabled);

    variables.push(("ONCEHOOK_LISTEN__PUBLIK", "1"));
    variables.push(("ONCEHOOK_LISTENN__PUBLIC", "1"));
    variables.push(("ONCEHOOK_SOURCE__NAME", "x"));
    variables.push(("ONCEHOOK_LIMITS__BODY", "many"));
    let environment = variables.iter().copied().collect();
    let error = Config::parse(&text, Path::new("x.toml"), &environment).unwrap_err();
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn an_operation_is_a_source_and_a_handler_of_one_name() {
    let operation = "[[operation]]\nname = \"pay\"\nkind = \"sql\"\ncall = \"app.pay\"\n";
    let plain = parse(&with("", operation)).unwrap();
    assert_eq!(plain.warnings.len(), 1, "{:?}", plain.warnings);
    let engine = plain.engine();
    let names: Vec<_> = engine.sources.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["main"], "the engine makes its source");
    let handler = &engine.handlers[0];
    assert_eq!(handler.name, "pay");
    assert!(handler.events.is_empty());
    assert_eq!(handler.operation, Some(OperationSpec::default()));
    let full = parse(&with(
        "",
        &format!(
            "{operation}volatile = [\"/at\", \"/items/*/trace\"]\nwait = \"0\"\nwait_max = \"10m\"\n\
             profile = \"ietf\"\non_failure = \"keep\"\nheaders = [\"X-Id\"]\n\
             keep_key = \"30d\"\nkeep_response = \"72h\"\ntimeout = \"3s\"\nwas = \"charge\"\n"
        ),
    ))
    .unwrap();
    let handler = &full.operations[0];
    assert_eq!(handler.timeout, Duration::from_secs(3));
    assert_eq!(handler.was.as_deref(), Some("charge"));
    let spec = handler.operation.as_ref().unwrap();
    assert_eq!(spec.volatile, ["/at", "/items/*/trace"]);
    assert_eq!(
        (spec.wait, spec.wait_max),
        (Duration::ZERO, Duration::from_mins(10))
    );
    assert_eq!(
        (spec.profile, spec.on_failure),
        (Profile::Ietf, OnFailure::Keep)
    );
    assert_eq!(spec.headers, ["x-id"]);
    assert_eq!(spec.keep_key, Some(Duration::from_hours(720)));
    assert_eq!(spec.keep_response, Some(Duration::from_hours(72)));
}

#[test]
fn what_an_operation_cannot_be_is_said_with_its_name() {
    for (lines, says) in [
        ("name = \"main\"", "another of this name exists"),
        ("name = \"Pay\"", "`name` must have"),
        (
            "name = \"pay\"\nevents = [\"*:*\"]",
            "belongs to [[handler]]",
        ),
        (
            "name = \"pay\"\napply_if_newer = \"occurred_at\"",
            "`apply_if_newer`",
        ),
        ("name = \"pay\"\nlane = \"entity\"", "`lane`"),
        (
            "name = \"pay\"\nvolatile = [\"trace\"]",
            "is not a JSON Pointer",
        ),
        ("name = \"pay\"\nvolatile = \"/trace\"", "a list of texts"),
        (
            "name = \"pay\"\nwait = \"2m\"",
            "`wait` must not be longer than `wait_max`",
        ),
        ("name = \"pay\"\nwait_max = \"11m\"", "10m"),
        (
            "name = \"pay\"\nprofile = \"stripe\"",
            "must be \"standard\" or \"ietf\"",
        ),
        (
            "name = \"pay\"\non_failure = \"retry\"",
            "must be \"release\" or \"keep\"",
        ),
        (
            "name = \"pay\"\nheaders = [\"Set-Cookie\"]",
            "cannot be stored",
        ),
        ("name = \"pay\"\nheaders = [\"a b\"]", "cannot be stored"),
        (
            "name = \"pay\"\nkeep_key = \"0\"",
            "`keep_key` must be longer than zero",
        ),
        ("name = \"pay\"\nwaiting = \"1s\"", "unknown key `waiting`"),
        (
            "name = \"pay\"\nurl = \"http://x\"",
            "belongs to kind = \"http\"",
        ),
        (
            "name = \"pay\"\nconcurrency = 4",
            "belongs to kind = \"http\"",
        ),
    ] {
        let operation = format!("[[operation]]\nkind = \"sql\"\ncall = \"app.pay\"\n{lines}\n");
        let said = errors(&with("", &operation));
        assert!(said.contains(says), "{lines}\n{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let twice = "[[operation]]\nname = \"pay\"\nkind = \"sql\"\ncall = \"app.pay\"\n".repeat(2);
    assert!(errors(&with("", &twice)).contains("another of this name"));
}

#[test]
fn the_database_alone_can_be_read() {
    let path = Path::new("/nonexistent/oncehook.toml");
    assert!(matches!(
        database(Some(path), &environment()),
        Err(ConfigError::Unreadable { .. })
    ));
    let environment = [("ONCEHOOK_DATABASE__URL", "postgresql://x/y")]
        .into_iter()
        .collect();
    assert_eq!(
        database(None, &environment).unwrap().url.expose(),
        "postgresql://x/y"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncehook.toml");
    std::fs::write(
        &path,
        "[database]\nurl = \"postgresql://z\"\n[[source]]\nbroken = 1\n",
    )
    .unwrap();
    let environment = Environment::default();
    assert_eq!(
        database(Some(&path), &environment).unwrap().url.expose(),
        "postgresql://z"
    );
}

#[test]
fn the_way_past_a_pooler_belongs_to_a_pooler() {
    let read = |lines: &str| {
        let text = format!("[database]\nurl = \"postgresql://pooler/d\"\n{lines}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncehook.toml");
        std::fs::write(&path, text).unwrap();
        database(Some(&path), &Environment::default()).map_err(|error| error.to_string())
    };
    assert_eq!(read("").unwrap().pooling, Pooling::Session);
    let pooled = read("pooling = \"transaction\"").unwrap();
    assert_eq!(
        (pooled.pooling, pooled.direct_url),
        (Pooling::Transaction, None)
    );
    let direct = "direct_url = \"postgresql://db/d\"";
    let pooled = read(&format!("pooling = \"transaction\"\n{direct}")).unwrap();
    assert_eq!(pooled.direct_url.unwrap().expose(), "postgresql://db/d");
    for (lines, says) in [
        (direct, "set pooling = \"transaction\""),
        (
            "pooling = \"statement\"",
            "must be \"session\" or \"transaction\"",
        ),
        (
            "pooling = \"transaction\"\ndirect_url = \"env:NOT_THERE\"",
            "NOT_THERE",
        ),
        (
            "pooling = \"transaction\"\ndirect_url = \" \"",
            "`direct_url` is empty",
        ),
    ] {
        let error = read(lines).unwrap_err();
        assert!(
            error.contains(says) && error.contains("line 3") | error.contains("line 4"),
            "{error}"
        );
    }
}

#[test]
fn every_error_is_said_at_once_with_its_line() {
    let text = r#"
[database]
ulr = "x"

[listen]
api = "0.0.0.0"
public = "localhost:8080"

[[source]]
name = "Main Shop"
provider = "strpe"
tolerence = "5m"
secrets = [{ label = "a", value = "env:EMPTY" }, { label = "a", value = "env:NOWHERE" }]

[[source]]
name = "second"
provider = "stripe"
secrets = [{ label = "short", value = "env:SHOP_SECRET", untill = 1 }]
accept_modes = ["live", "prod"]
on_conflict = "maybe"

[[handler]]
name = "h"
kind = "http"
url = "ftp://x"
events = ["nocolon"]
colour = "red"
retry = { for = "3 days", fist = "5s" }

[limits]
body = "1MB"

[operations]
"#;
    insta::assert_snapshot!(errors(text));
}

#[test]
fn broken_toml_is_an_error_with_its_line() {
    let text = errors("[database]\nurl = \n");
    assert!(text.contains("line 2: not TOML"), "{text}");
}

#[test]
fn f13_secrets_that_do_not_decode_are_refused_where_the_preset_decodes() {
    for value in ["whsec_", "whsec_!!!!", "whsec_QQ=="] {
        let text = with(
            &format!("secrets = [{{ label = \"x\", value = \"{value}\" }}]"),
            "",
        )
        .replace("\"stripe\"", "\"standard-webhooks\"");
        let text = errors(&text);
        assert!(text.contains("source \"main\", secret \"x\""), "{text}");
        assert!(!text.contains(value) || value == "whsec_", "{text}");
    }
}

#[test]
fn hmac_options_say_all_unknown_keys() {
    let text = "[database]\nurl = \"x\"\n[[source]]\nname = \"shop\"\nprovider = \"hmac\"\nsecrets = [{ label = \"a\", value = \"env:SHOP_SECRET\" }]\n[source.hmac]\nheader = \"X\"\nsigned = \"{body}\"\nevent_id = \"json:/id\"\nhashh = \"sha256\"\nencodin = \"hex\"\n";
    let text = errors(text);
    assert!(
        text.contains(
            "line 11: source \"shop\", [source.hmac]: unknown key `hashh`: did you mean `hash`?"
        ),
        "{text}"
    );
    assert!(text.contains("line 12: source \"shop\", [source.hmac]: unknown key `encodin`: did you mean `encoding`?"), "{text}");
}

#[test]
fn patterns_without_a_source_and_sources_without_a_handler_are_warnings() {
    let config = parse(&with(
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"shop:order.*\"]",
    ))
    .unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("no configured source"));
    assert!(warnings[1].contains("no handler takes its events"));
}

#[test]
fn ended_secrets_are_warnings() {
    let config = parse(&with(
        &format!(
            "secrets = [{{ label = \"a\", value = \"{WHSEC}\", until = \"2020-01-01T00:00:00Z\" }}]"
        ),
        "",
    ))
    .unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}

#[test]
fn what_holds_a_handler_back_is_read() {
    let config = parse(&with(
        "",
        &format!(
            "{HTTP}rate = \"600/min\"\nmax_in_flight = 20\nretry = {{ share = 50 }}\n\
             priority = {{ high = [\"main:charge.*\"], low = [\"main:report.*\"] }}\n\
             breaker = {{ failures = 80, minimum = 5, window = \"1m\", first = \"1s\", max = \"10s\", probes = 1 }}\n"
        ),
    ))
    .unwrap();
    let handler = &config.handlers[0];
    assert_eq!(handler.cap.in_flight, Some(20));
    assert_eq!(
        handler.cap.rate.map(|r| (r.count, r.per)),
        Some((600, Duration::from_mins(1)))
    );
    assert_eq!(handler.retry_share, 50);
    let of = |kind| handler.priorities.of("main", Some(kind)).as_str();
    assert_eq!(
        ["charge.x", "report.x", "order"].map(of),
        ["high", "low", "normal"]
    );
    let breaker = handler.breaker.unwrap();
    assert_eq!(
        (breaker.failures, breaker.minimum, breaker.probes),
        (80, 5, 1)
    );
    assert_eq!(
        (breaker.first, breaker.max),
        (Duration::from_secs(1), Duration::from_secs(10))
    );
    let off = parse(&with("", &format!("{HTTP}breaker = false\n"))).unwrap();
    assert_eq!(off.handlers[0].breaker, None);
    let text = errors(&with(
        "",
        &format!("{HTTP}breaker = {{ probes = 9, first = \"2m\" }}\n"),
    ));
    assert!(
        text.contains("handler \"h\", breaker: `probes` must be a whole number from 1 to 3"),
        "{text}"
    );
    assert!(
        text.contains("`breaker.first` must not be longer than `breaker.max`"),
        "{text}"
    );
}

const SETTLE: &str = "[[handler]]\nname = \"s\"\nkind = \"settle\"\nevents = [\"*:paid\"]\nof = \"h\"\neffect_key = \"json:/key\"\nresult = \"failed\"\n";

#[test]
fn whose_calls_a_handler_settles_is_checked_when_all_are_read() {
    let held = HTTP.replace("\"retry\"", "\"hold\"");
    let settled = parse(&with("", &format!("{SETTLE}{held}"))).unwrap();
    let HandlerKind::Settle(settle) = &settled.handlers[0].kind else {
        panic!("{:?}", settled.handlers);
    };
    let read = [
        settle.of.as_str(),
        &settle.reading.effect_key.to_string(),
        settle.reading.word.as_str(),
    ];
    assert_eq!(read, ["h", "json:/key", "failed"]);
    let operation = held
        .replace("[[handler]]", "[[operation]]")
        .replace("events = [\"*:*\"]\n", "");
    parse(&with("", &format!("{SETTLE}{operation}"))).unwrap();
    let other = format!("{}{held}", SETTLE.replace("of = \"h\"", "of = \"g\""));
    assert!(errors(&with("", &other)).contains("`of` is \"g\""));
    let never = errors(&with("", &format!("{SETTLE}{HTTP}")));
    assert!(never.contains("is never unknown"), "{never}");
    let unread = held.replace("\"hold\"", "\"hope\"");
    let unread = errors(&with("", &format!("{SETTLE}{unread}")));
    assert!(!unread.contains("`of`"), "{unread}");
    let place = errors(&with(
        "",
        &format!("{}{held}", SETTLE.replace("json:/key", "/key")),
    ));
    assert!(
        place.contains("`effect_key`: \"/key\" names no place"),
        "{place}"
    );
    let of_operation = SETTLE
        .replace("[[handler]]", "[[operation]]")
        .replace("events = [\"*:paid\"]\n", "");
    let of_operation = errors(&with("", &format!("{of_operation}{held}")));
    assert!(
        of_operation.contains("does something itself"),
        "{of_operation}"
    );
}
