//! `replay --all`: new runs of every finished one that fits; and what is said to one by its number.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use crate::config::Config;
use crate::domain::Ending;
use crate::store::Store;
use crate::store::bulk::{
    self, BulkOrder, BulkReplay, BulkWord, Candidates, RATE, RATE_MAX, ReplayFilter, StoredRequest,
};
use crate::telemetry::clean;

use super::super::context::Context;
use super::super::failure::Failure;
use super::super::words;
use super::{Args, bulks};

/// Between two lines of progress.
pub(super) const PROGRESS: Duration = Duration::from_secs(2);
/// Between two looks while a node opens the pages.
const LOOK: Duration = Duration::from_millis(200);

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
    /// With --all: new runs per second, at most, over all nodes.
    #[arg(long, value_name = "N", default_value_t = RATE, requires = "all", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: u32,
    /// With --all: only if the stored bytes are those that were received, and a configured secret
    /// still verifies them.
    #[arg(long, requires = "all")]
    verify_bytes: bool,
    /// With --all: run them; without it they are only counted.
    #[arg(long, requires = "all")]
    yes: bool,
    /// With --all: even if another bulk may mean the same runs; one that is not complete is given up.
    #[arg(long, requires = "all")]
    anew: bool,
    /// Go on with this bulk, and wait for its end.
    #[arg(long = "continue", value_name = "BULK", group = "bulk", conflicts_with_all = ["all", "missing", "source"])]
    go_on: Option<i64>,
    /// Stop this bulk; it can be continued.
    #[arg(long, value_name = "BULK", group = "bulk", conflicts_with_all = ["all", "missing", "source"])]
    stop: Option<i64>,
    /// Give this bulk up; what it ran again stays.
    #[arg(long, value_name = "BULK", group = "bulk", conflicts_with_all = ["all", "missing", "source"])]
    give_up: Option<i64>,
    /// List bulks: those that have not ended, then the newest.
    #[arg(long, group = "bulk", conflicts_with_all = ["all", "missing", "source", "reason"])]
    pub(super) list: bool,
    /// Show this bulk: what it means, how far it is, who did what to it, what was refused.
    #[arg(long, value_name = "BULK", group = "bulk", conflicts_with_all = ["all", "missing", "source", "reason"])]
    pub(super) show: Option<i64>,
}

impl Filter {
    /// What is said to which bulk, if anything.
    pub(super) fn word(&self) -> Option<(i64, BulkWord)> {
        let go_on = self.go_on.map(|bulk| (bulk, BulkWord::Continue));
        let stop = self.stop.map(|bulk| (bulk, BulkWord::Stop));
        let give_up = self.give_up.map(|bulk| (bulk, BulkWord::GiveUp));
        go_on.or(stop).or(give_up)
    }
}

#[derive(Serialize)]
struct Report {
    /// What fits, by source, handler and result.
    candidates: Vec<Candidates>,
    /// What was done; absent without --yes.
    done: Option<BulkReplay>,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let filter = filter(args)?;
    let many = &args.many;
    // Found out before anything is started.
    let config = many.verify_bytes.then(|| context.config()).transpose()?;
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
    if many.yes {
        let order = BulkOrder {
            filter,
            force: args.force,
            verify_bytes: many.verify_bytes,
            rate: many.rate,
            anew: many.anew,
            reason: args.reason().to_owned(),
            actor: context.actor(),
        };
        let bulk = store.start_bulk(&order).await?;
        context.printer.note(format_args!("bulk {bulk} begins"));
        report.done = Some(follow(context, &store, bulk, config.as_ref()).await?);
    }
    match report.done {
        _ if json => context.printer.value(&report),
        Some(done) => tell(context, &done),
        None => {
            let what = words::count(runs, "finished run fits", "finished runs fit");
            context.printer.note(format_args!(
                "{what}; nothing was run: add --yes to run them"
            ));
            Ok(())
        }
    }
}

/// Says a word to a bulk; one that goes on is waited for.
pub(super) async fn say(
    context: &Context,
    args: &Args,
    bulk: i64,
    word: BulkWord,
) -> Result<(), Failure> {
    let store = context.store()?;
    let before = store.bulk_replay(bulk).await?;
    let config = (word == BulkWord::Continue && before.verify_bytes)
        .then(|| context.config())
        .transpose()?;
    store
        .tell_bulk(bulk, word, args.reason(), &context.actor())
        .await?;
    let done = match word {
        BulkWord::Continue => follow(context, &store, bulk, config.as_ref()).await?,
        BulkWord::Stop | BulkWord::GiveUp => store.bulk_replay(bulk).await?,
    };
    if context.printer.json() {
        return context.printer.value(&done);
    }
    tell(context, &done)?;
    if word == BulkWord::Stop && done.replayed > 0 {
        context.printer.note(format_args!(
            "what is ready still runs: `{} handlers pause NAME --reason WHY` holds it back",
            words::program(&context.environment)
        ));
    }
    Ok(())
}

/// Opens a bulk's pages, as the nodes do, until it has ended or is stopped. Ctrl-C stops it: whoever
/// presses it does not want it to go on elsewhere.
async fn follow(
    context: &Context,
    store: &Store,
    bulk: i64,
    config: Option<&Config>,
) -> Result<BulkReplay, Failure> {
    let program = words::program(&context.environment);
    let hint = format!("`{program} replay --continue {bulk} --reason WHY` goes on with it");
    tokio::select! {
        done = open_pages(context, store, bulk, config) => match done {
            Ok(done) if done.state != "complete" => {
                let state = done.state.replace('_', " ");
                let ready = words::count(done.replayed, "run is", "runs are");
                Err(Failure::no(format!("bulk {bulk} is {state}, {ready} ready")).hint(hint))
            }
            done => done.map_err(|failure| failure.hint(hint)),
        },
        Ok(()) = tokio::signal::ctrl_c() => {
            let (word, why) = (BulkWord::Stop, "interrupted");
            store.tell_bulk(bulk, word, why, &context.actor()).await?;
            let ready = words::count(store.bulk_replay(bulk).await?.replayed, "run is", "runs are");
            Err(Failure::no(format!("interrupted: bulk {bulk} is stopped, {ready} ready")).hint(hint))
        }
    }
}

async fn open_pages(
    context: &Context,
    store: &Store,
    bulk: i64,
    config: Option<&Config>,
) -> Result<BulkReplay, Failure> {
    let check = |request: &StoredRequest| {
        let mut sources = config.iter().flat_map(|config| &config.sources);
        let source = sources.find(|settings| settings.source.name == request.source);
        bulk::verify(source.map(|settings| &settings.source), request)
    };
    let mut told = Instant::now();
    loop {
        let page = store.next_page(Some(bulk), &check).await?;
        let now = store.bulk_replay(bulk).await?;
        if now.state != "running" {
            return Ok(now);
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            context.printer.note(format_args!(
                "{} ready, {} refused",
                now.replayed, now.refused
            ));
        }
        tokio::time::sleep(page.map_or(LOOK, |page| page.wait)).await;
    }
}

fn tell(context: &Context, done: &BulkReplay) -> Result<(), Failure> {
    for refused in &done.refusals {
        context.printer.line(bulks::refused(refused))?;
    }
    context.printer.note(format_args!(
        "{}, {} refused; bulk {} is {}",
        words::count(done.replayed, "run is ready", "runs are ready"),
        done.refused,
        done.bulk,
        done.state.replace('_', " ")
    ));
    Ok(())
}

fn filter(args: &Args) -> Result<ReplayFilter, Failure> {
    let many = &args.many;
    let filter = ReplayFilter {
        source: args.source.clone(),
        event_type: many.event_type.clone(),
        handler: args.handler.clone(),
        results: many
            .result
            .iter()
            .filter_map(|word| Ending::named(word))
            .collect(),
        since: args.since.unwrap_or(Timestamp::MIN),
        until: many.until,
    };
    filter.check(args.force).map_err(Failure::usage)?;
    Ok(filter)
}
