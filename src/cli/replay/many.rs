//! `replay --all`: new runs of every finished one that fits.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use crate::config::Config;
use crate::domain::Ending;
use crate::provider::{Headers, Request};
use crate::store::replay_many::{
    Candidates, ReplayFilter, ReplayMany, ReplayedMany, StoredRequest,
};
use crate::telemetry::clean;

use super::super::context::Context;
use super::super::failure::Failure;
use super::super::words;
use super::Args;

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(2);

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Every finished run that fits: a count, and with --yes new runs.
    #[arg(long, requires = "since", conflicts_with = "missing")]
    pub(super) all: bool,
    /// With --all: of every handler that is not retired.
    #[arg(long, requires = "all", conflicts_with = "handler")]
    every_handler: bool,
    /// With --all: runs that ended so.
    #[arg(long, value_name = "RESULT", value_delimiter = ',', default_value = "dead", requires = "all",
          value_parser = ["dead", "failed", "skipped", "cancelled", "succeeded"])]
    result: Vec<String>,
    /// With --all: events of this type, * for any run of characters.
    #[arg(long = "type", value_name = "TYPE", requires = "all")]
    event_type: Option<String>,
    /// With --all: received until then; now, if left out.
    #[arg(long, value_name = "WHEN", value_parser = words::since, requires = "all")]
    until: Option<Timestamp>,
    /// With --all: new runs per second, at most.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "all", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// With --all: only if the stored bytes are those that were received, and a configured secret
    /// still verifies them.
    #[arg(long, requires = "all")]
    verify_bytes: bool,
    /// With --all: run them; without it they are only counted.
    #[arg(long, requires = "all")]
    yes: bool,
}

#[derive(Serialize)]
struct Report {
    /// What fits, by source, handler and result.
    candidates: Vec<Candidates>,
    /// What was done; absent without --yes.
    done: Option<ReplayedMany>,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let filter = filter(args)?;
    let store = context.store()?;
    let candidates = store.count_replays(&filter).await?;
    let runs: u64 = candidates.iter().map(|c| c.runs).sum();
    let json = context.printer.json();
    if !json {
        for Candidates {
            source,
            handler,
            result,
            runs,
        } in &candidates
        {
            context.printer.line(format_args!(
                "{runs} {result}: {} {}",
                clean(source),
                clean(handler)
            ))?;
        }
    }
    let mut report = Report {
        candidates,
        done: None,
    };
    if args.many.yes {
        let config = args
            .many
            .verify_bytes
            .then(|| context.config())
            .transpose()?;
        let many = ReplayMany {
            filter,
            force: args.force,
            rate: args.many.rate,
            reason: args.reason.clone(),
            actor: context.actor(),
        };
        let check =
            |request: &StoredRequest| config.as_ref().map_or(Ok(()), |c| verify(c, request));
        let check = config.is_some().then_some(&check as _);
        let mut told = Instant::now();
        let progress = |done: &ReplayedMany| {
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                context.printer.note(format_args!(
                    "{} of {runs} ready, {} refused",
                    done.replayed, done.refused
                ));
            }
        };
        report.done = Some(store.replay_many(&many, check, progress).await?);
    }
    if json {
        return context.printer.value(&report);
    }
    let what = words::count(runs, "finished run fits", "finished runs fit");
    let Some(done) = report.done else {
        context.printer.note(format_args!(
            "{what}; nothing was run: add --yes to run them"
        ));
        return Ok(());
    };
    for refused in &done.examples {
        context.printer.line(format_args!(
            "not {} {} {}: {}",
            clean(&refused.source),
            clean(&refused.key),
            clean(&refused.handler),
            clean(&refused.why)
        ))?;
    }
    context.printer.note(format_args!(
        "{}, {} refused; bulk {} in the audit",
        words::count(done.replayed, "run is ready", "runs are ready"),
        done.refused,
        done.bulk
    ));
    Ok(())
}

fn filter(args: &Args) -> Result<ReplayFilter, Failure> {
    let many = &args.many;
    let results: Vec<Ending> = many
        .result
        .iter()
        .filter_map(|word| Ending::named(word))
        .collect();
    if results.contains(&Ending::Succeeded) && !args.force {
        return Err(Failure::usage(
            "what succeeded is run again with --force only, under new effect keys: outside effects happen again",
        ));
    }
    let until = many.until.unwrap_or_else(Timestamp::now);
    let since = args.since.unwrap_or(Timestamp::MIN);
    if since >= until {
        return Err(Failure::usage("--since must lie before --until"));
    }
    Ok(ReplayFilter {
        source: args.source.clone(),
        event_type: many.event_type.clone(),
        handler: args.handler.clone(),
        results,
        since,
        until,
    })
}

/// Whether a secret that is configured now verifies the request as of when it came.
fn verify(config: &Config, request: &StoredRequest) -> Result<(), String> {
    let source = config
        .sources
        .iter()
        .map(|settings| &settings.source)
        .find(|source| source.name == request.source)
        .ok_or("its source is not configured here, so its signature cannot be checked")?;
    if !source.provider.receives_requests() {
        // Emitted in the database: it never had a signature.
        return Ok(());
    }
    let stored: Vec<(String, String)> = serde_json::from_slice(&request.headers)
        .map_err(|_| "its stored headers cannot be read".to_owned())?;
    let mut headers = Headers::default();
    for (name, value) in &stored {
        headers.push(name, value.as_bytes());
    }
    let target = match &request.query {
        Some(query) => format!("{}?{query}", request.path),
        None => request.path.clone(),
    };
    let asked = Request {
        method: &request.method,
        target: &target,
        headers: &headers,
        body: &request.body,
    };
    match source
        .provider
        .verify(&asked, &source.secrets, request.received_at)
    {
        Ok(_) => Ok(()),
        Err(refusal) => Err(format!(
            "no secret that is configured now verifies it ({})",
            refusal.code()
        )),
    }
}
