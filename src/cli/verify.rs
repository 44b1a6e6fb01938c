//! `verify`: the invariants of the engine, checked over what is stored.

use std::time::Duration;

use anyhow::anyhow;
use jiff::Timestamp;

use crate::config::units;
use crate::store::verify::{
    CHECK_TIME, CHECK_TIME_MAX, CheckReport, CheckState, EXAMPLES, Finding, PATIENCE, Verification,
    VerifyOptions, WINDOW,
};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::words;

/// A window that is nearer to now has nothing in it.
const WINDOW_MIN: Duration = Duration::from_secs(1);

const HELP: &str = "\
Examples:
  oncehook verify
  oncehook verify --json --since 1h       (from cron, hourly)
  oncehook verify --all --digests         (after a restore or a failover)

Exit codes: 0 everything holds; 4 an invariant does not hold; 5 nothing is broken, but a warning
needs a look; 3 nothing was found, but not everything could be checked.";

/// Check the engine's invariants over the database.
///
/// Every key has its event, every event its work, every run one outcome, every lease one token, and
/// so on: one line per check. Reads only and locks no row, so the service may be at work, and a standby
/// will do where `database.url` names one server. What handlers did outside of the database cannot be
/// seen.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Read events and history since then: "2026-12-01T00:00:00Z", or an age such as "24h". Live
    /// deliveries are checked in any case.
    #[arg(long, value_name = "WHEN", value_parser = since, default_value = shown(WINDOW), conflicts_with = "all")]
    since: Timestamp,
    /// Read everything that is stored.
    #[arg(long)]
    all: bool,
    /// Also read the stored bytes and compare them with the digests. Reads every body.
    #[arg(long)]
    digests: bool,
    /// Examples shown per check, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = EXAMPLES, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
    /// How long a transaction may be open and an ended lease unreaped; due work may wait three
    /// times as long. Longer than your slowest handler's `timeout`.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = shown(PATIENCE))]
    patience: Duration,
    /// Longest time of one check; what takes longer is reported as unfinished; 0 for no limit.
    #[arg(long, value_name = "TIME", value_parser = check_time, default_value = shown(CHECK_TIME))]
    check_time: Duration,
}

/// A default for the help, which lives as long as the program.
fn shown(duration: Duration) -> &'static str {
    units::show_duration(duration).leak()
}

/// A moment that leaves something to read behind it.
fn since(text: &str) -> Result<Timestamp, String> {
    let since = words::since(text)?;
    if since > Timestamp::now() - WINDOW_MIN {
        return Err(format!(
            "nothing was received since {text:?}, so nothing would be checked: write a moment that is past, such as \
             \"2026-12-01T00:00:00Z\", or an age such as \"24h\" or \"7d\""
        ));
    }
    Ok(since)
}

/// A time that PostgreSQL can be told.
fn check_time(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    if time > CHECK_TIME_MAX {
        return Err(format!(
            "{text:?} is longer than PostgreSQL can be told: write at most \"24d\", or 0 for no limit"
        ));
    }
    Ok(time)
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let verification = match verified(context, args).await {
        Ok(verification) => verification,
        Err(failure) => {
            if context.printer.json() {
                let mut answer = failure.json();
                answer.insert("holds".to_owned(), false.into());
                context.printer.value(&answer)?;
            }
            return Err(failure);
        }
    };
    if context.printer.json() {
        context.printer.value(&verification)?;
    } else {
        for line in lines(&verification) {
            context.printer.line(line)?;
        }
    }
    verdict(&verification)
}

async fn verified(context: &Context, args: Args) -> Result<Verification, Failure> {
    let mut options = VerifyOptions {
        since: if args.all {
            Timestamp::UNIX_EPOCH
        } else {
            args.since
        },
        examples: args.limit,
        check_time: args.check_time,
        patience: args.patience,
        digests: args.digests,
        handlers: Vec::new(),
    };
    let mut known = true;
    // The database has no patterns. Its other invariants need no usable configuration.
    match context.config() {
        Ok(config) => {
            let handlers = config.all_handlers().into_iter();
            options.handlers = handlers.map(|h| (h.name, h.events)).collect();
        }
        Err(_) => known = false,
    }
    // Where there is no database to ask either, that is the error, and it alone is said.
    let store = context.reading_store()?;
    if !known {
        context.printer.note(
            "the handlers are not known, so `missing` is not checked: `oncehook check` says why",
        );
    }
    Ok(store.verify(&options).await?)
}

fn verdict(verification: &Verification) -> Result<(), Failure> {
    let Verification {
        broken,
        warnings,
        unfinished,
        ..
    } = *verification;
    let count = |n: usize| words::count(n as u64, "check", "checks");
    if broken > 0 {
        let text = format!("{} found what must not be", count(broken));
        return Err(Failure::new(Exit::Broken, anyhow!(text)));
    }
    if unfinished > 0 {
        let text = format!(
            "{} did not finish; the others found nothing that must not be",
            count(unfinished)
        );
        return Err(Failure::new(Exit::Unreachable, anyhow!(text)));
    }
    if warnings > 0 {
        let text = format!("nothing is broken; {} to look at", count(warnings));
        return Err(Failure::new(Exit::Warning, anyhow!(text)));
    }
    Ok(())
}

/// A line per check; below it what was found, and what to do.
fn lines(verification: &Verification) -> Vec<String> {
    let mut lines = Vec::new();
    for check in &verification.checks {
        lines.push(line(check));
        if check.state == CheckState::Ok {
            continue;
        }
        lines.extend(check.findings.iter().map(|f| format!("    {f}")));
        let shown = check.findings.len() as u64;
        if check.found > shown {
            lines.push(format!("    and {} more", check.found - shown));
        }
        lines.push(format!("    next: {}", check.next));
        if check.check == "event_key" {
            // By its key it is not found.
            let ids = check.findings.iter().filter_map(|f| f.event_id);
            lines.extend(
                ids.take(1)
                    .map(|id| format!("    the first one's id: {id}")),
            );
            continue;
        }
        let known = |f: &Finding| f.source.clone().zip(f.key.clone());
        if let Some((source, key)) = check.findings.iter().find_map(known) {
            lines.push(format!(
                "    oncehook show {} {}",
                words::shell(&source),
                words::operand(&key)
            ));
        }
    }
    lines
}

fn line(check: &CheckReport) -> String {
    let examined = check.examined.map_or(String::new(), |n| n.to_string());
    let found = match check.found {
        0 => String::new(),
        n if check.state == CheckState::Note => format!(": {n}"),
        n => format!(", but {n} not"),
    };
    let counted = match check.examined {
        Some(1) => singular(check.counted),
        _ => check.counted.to_owned(),
    };
    format!(
        "{:<10} {:<15} {examined:>9} {counted:<10} {:>6} ms  {}{found}",
        check.state.as_str(),
        check.check,
        check.took_ms,
        check.about
    )
}

/// One of what is counted.
fn singular(counted: &str) -> String {
    match counted.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => counted.strip_suffix('s').unwrap_or(counted).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_in_which_nothing_can_be_and_a_time_without_end_are_refused() {
        assert!(since("1h").is_ok() && since("2026-01-01T00:00:00Z").is_ok());
        for text in ["0", "0s", "999ms", "2999-01-01T00:00:00Z"] {
            let said = since(text).unwrap_err();
            assert!(said.contains("nothing would be checked"), "{said}");
        }
        assert_eq!(check_time("0"), Ok(Duration::ZERO));
        assert!(check_time("24d").is_ok());
        for text in ["25d", "100d"] {
            let said = check_time(text).unwrap_err();
            assert!(said.contains("at most \"24d\""), "{said}");
        }
    }

    #[test]
    fn one_is_no_plural() {
        let words = ["migrations", "keys", "deliveries", ""].map(singular);
        assert_eq!(words, ["migration", "key", "delivery", ""]);
    }

    #[test]
    fn a_page_of_findings_reads_well_and_stays_on_its_lines() {
        let finding = |key: Option<&str>, handler: Option<&str>, detail: &str| Finding {
            event_id: None,
            source: key.map(|_| "stripe-main".into()),
            key: key.map(str::to_owned),
            handler: handler.map(str::to_owned),
            run: handler.map(|_| 2),
            detail: detail.into(),
        };
        let check = |check, about, state, examined, found, findings| CheckReport {
            check,
            about,
            state,
            counted: if examined == 0 { "" } else { "events" },
            examined: Some(examined).filter(|n| *n > 0),
            found,
            took_ms: 17,
            findings,
            next: "`oncehook show SOURCE KEY` tells what is known of it",
        };
        let verification = Verification {
            since: Timestamp::UNIX_EPOCH,
            holds: false,
            broken: 1,
            warnings: 1,
            unfinished: 1,
            checks: vec![
                check(
                    "key_event",
                    "every key has its event",
                    CheckState::Ok,
                    1_000_000,
                    0,
                    vec![],
                ),
                check(
                    "route",
                    "every handler in an event's routes has a delivery or an outcome",
                    CheckState::Broken,
                    1_000_000,
                    12,
                    vec![
                        finding(
                            Some("evt_1\n\u{1b}[2J"),
                            Some("ledger"),
                            "neither a delivery nor an outcome",
                        ),
                        finding(
                            Some("evt_2"),
                            Some("ledger"),
                            "neither a delivery nor an outcome",
                        ),
                    ],
                ),
                check(
                    "sessions",
                    "no transaction is left open",
                    CheckState::Warning,
                    0,
                    1,
                    vec![finding(
                        None,
                        None,
                        "backend 7 (psql) is idle in transaction for 900 s",
                    )],
                ),
                check(
                    "digest",
                    "every event's bytes are those that were received",
                    CheckState::Unfinished,
                    1_000_000,
                    0,
                    vec![finding(None, None, "it took too long")],
                ),
            ],
        };
        let exit = |broken, unfinished, warnings| {
            let verification = Verification {
                broken,
                warnings,
                unfinished,
                ..verification.clone()
            };
            verdict(&verification).map_or_else(|failure| failure.exit() as u8, |()| 0)
        };
        assert_eq!(
            [exit(0, 0, 0), exit(0, 0, 1), exit(0, 1, 1), exit(1, 1, 1)],
            [0, 5, 3, 4]
        );
        let failure = verdict(&verification).unwrap_err();
        insta::assert_snapshot!(format!(
            "{}\n\n{}\n(exit {})",
            lines(&verification).join("\n"),
            failure.text(),
            failure.exit() as u8
        ));
    }
}
