//! `simulate`: a correctly signed event, sent as its provider would.

mod request;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde::Serialize;

use crate::config::{Config, SourceSettings};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::{Exit, Failure, Step as _};
use super::{service, words};

use request::Prepared;

/// The service answers within 2 s even when its database is lost; the rest is the network's.
const ANSWER_TIME: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "Examples:\n\
    \x20 oncehook simulate stripe-main --list\n\
    \x20 oncehook simulate stripe-main payment_intent.succeeded\n\
    \x20 oncehook simulate shop order.paid --id order-7 --count 3     the same event three times";

/// Send a correctly signed event to the running service.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Source name.
    source: String,
    /// Event type [default: the most used one].
    #[arg(value_name = "TYPE")]
    event_type: Option<String>,
    /// List the types there are samples of.
    #[arg(long, conflicts_with_all = ["count", "payload", "id", "url"])]
    list: bool,
    /// How many events to send, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Send this file's bytes (- for stdin) in place of a sample.
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Make the ids from this text in place of random ones: the same id gives the same event.
    #[arg(long)]
    id: Option<String>,
    /// Sign with this secret (`env:NAME`, `file:PATH` or the text), where the configured one cannot
    /// sign: the private key of an asymmetric scheme.
    #[arg(long)]
    secret: Option<String>,
    /// Send to this URL [default: the configured public address].
    #[arg(long)]
    url: Option<String>,
}

/// How one event fared.
#[derive(Debug, Serialize)]
struct Answer {
    source: String,
    #[serde(rename = "type")]
    event_type: String,
    url: String,
    status: u16,
    acknowledged: bool,
    replayed: bool,
    body: String,
    duration_ms: u64,
    /// Event keys, if a configured secret verifies what was sent.
    keys: Vec<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let config = context.config()?;
    let source = find(&config, &args.source)?;
    if args.list {
        return list(context, source);
    }
    let payload = args.payload.as_deref().map(read_payload).transpose()?;
    let types = source.source.provider.sample_types();
    let event_type = args
        .event_type
        .unwrap_or_else(|| types.first().copied().unwrap_or_default().to_owned());
    let secret = request::secret(args.secret.as_deref(), &context.environment)?;
    let url = url(&config, source, args.url.as_deref())?;
    let client = service::client(&url, ANSWER_TIME)?;
    let mut last = None;
    let mut refused = 0_u32;
    for _ in 0..args.count {
        let id = args.id.as_deref();
        let prepared = Prepared::new(
            source,
            &event_type,
            payload.as_deref(),
            id,
            secret.as_ref(),
            &url,
        )?;
        let answer = send(&client, source, &event_type, url.clone(), prepared).await?;
        refused += u32::from(!answer.acknowledged);
        show(context, &answer)?;
        last = Some(answer);
    }
    if refused > 0 {
        return Err(Failure::no(format!("{refused} of {} not acknowledged", args.count))
            .hint("the service's log and `rejected` say why; the sender is told only what it may know"));
    }
    if let Some(answer) = last {
        next(context, &answer);
    }
    Ok(())
}

fn find<'a>(config: &'a Config, name: &str) -> Result<&'a SourceSettings, Failure> {
    config.source(name).ok_or_else(|| {
        let names: Vec<_> = config
            .sources
            .iter()
            .map(|s| s.source.name.as_str())
            .collect();
        Failure::no(format!("no source {name:?} is configured"))
            .hint(format!("configured: {}", names.join(", ")))
    })
}

fn list(context: &Context, source: &SourceSettings) -> Result<(), Failure> {
    let types = source.source.provider.sample_types();
    if context.printer.json() {
        return context.printer.value(&types);
    }
    types.iter().try_for_each(|name| context.printer.line(name))
}

fn read_payload(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .read_to_end(&mut bytes)
            .step("cannot read the payload from stdin")?;
        Ok(bytes)
    } else {
        std::fs::read(path).step(format!("cannot read {}", path.display()))
    }
}

fn url(
    config: &Config,
    source: &SourceSettings,
    given: Option<&str>,
) -> Result<reqwest::Url, Failure> {
    if let Some(given) = given {
        return reqwest::Url::parse(given).map_err(|error| {
            Failure::usage(format!("--url {:?} is not a URL: {error}", clean(given)))
        });
    }
    let address = service::address(config)?;
    reqwest::Url::parse(&format!("http://{address}/webhooks/{}", source.source.name))
        .step("cannot make the URL")
}

async fn send(
    client: &reqwest::Client,
    source: &SourceSettings,
    event_type: &str,
    url: reqwest::Url,
    prepared: Prepared,
) -> Result<Answer, Failure> {
    let text = url.to_string();
    let began = Instant::now();
    let mut request = client.post(url).body(prepared.signed.body);
    for (name, value) in prepared.signed.headers {
        request = request.header(name, value);
    }
    let unreachable = |error: reqwest::Error| {
        Failure::new(Exit::Unreachable, anyhow!(error.without_url()))
            .context(format!("no answer from {}", clean(&text)))
            .hint("is the service running? `oncehook dev` or `oncehook serve` starts it")
    };
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    let replayed = response.headers().contains_key("idempotency-replayed");
    let body = response.bytes().await.map_err(unreachable)?;
    Ok(Answer {
        source: source.source.name.clone(),
        event_type: event_type.to_owned(),
        url: text.clone(),
        status: status.as_u16(),
        acknowledged: status.is_success(),
        replayed,
        body: String::from_utf8_lossy(&body).into_owned(),
        duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        keys: prepared.keys,
    })
}

fn show(context: &Context, answer: &Answer) -> Result<(), Failure> {
    if context.printer.json() {
        return context.printer.value(answer);
    }
    let replayed = if answer.replayed {
        " (known already)"
    } else {
        ""
    };
    let keys: Vec<_> = answer.keys.iter().map(|key| clean(key)).collect();
    context.printer.line(format_args!(
        "{} {} -> {}{replayed} in {} ms  {}",
        clean(&answer.event_type),
        keys.join(" "),
        answer.status,
        answer.duration_ms,
        clean(answer.body.trim_end())
    ))
}

/// The command that shows what became of the event.
fn next(context: &Context, answer: &Answer) {
    match answer.keys.first() {
        Some(key) => context.printer.note(format_args!(
            "next: {} show {} {}",
            words::program(&context.environment),
            words::shell(&answer.source),
            words::operand(key)
        )),
        None => context
            .printer
            .note("its event key is not known here: no configured secret verifies what was sent"),
    }
}
