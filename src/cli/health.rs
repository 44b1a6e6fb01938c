//! `health`: whether the service answers, for process supervisors and container health checks.

use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;

use super::context::Context;
use super::failure::{Exit, Failure, Step as _};
use super::service;

/// The service says within 2 s whether it is ready.
const ANSWER_TIME: Duration = Duration::from_secs(4);

/// Ask the running service whether it is there.
///
/// GETs /healthz of the public address: the process answers. With --ready it GETs /readyz: the
/// database takes writes and the node is not on its way out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook health --ready")]
pub(super) struct Args {
    /// Also whether webhooks can be taken now.
    #[arg(long)]
    ready: bool,
    /// Ask the service at this address [default: the configured public one].
    #[arg(long, value_name = "URL")]
    url: Option<reqwest::Url>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let base = if let Some(url) = args.url {
        url
    } else {
        let address = service::address(&context.config()?)?;
        reqwest::Url::parse(&format!("http://{address}")).step("cannot make the URL")?
    };
    let url = base.join(path).step("cannot make the URL")?;
    let unreachable = |error: reqwest::Error| {
        Failure::new(Exit::Unreachable, anyhow!(error.without_url()))
            .context("no answer")
            .hint("is the service running? `oncehook serve` starts it")
    };
    let client = service::client(&url, ANSWER_TIME)?;
    let answer = client.get(url).send().await.map_err(unreachable)?;
    let status = answer.status();
    if context.printer.json() {
        context
            .printer
            .value(&json!({ "healthy": status.is_success(), "status": status.as_u16() }))?;
    } else if status.is_success() {
        let body = answer.text().await.map_err(unreachable)?;
        context.printer.line(body.trim_end())?;
    }
    if status.is_success() {
        Ok(())
    } else {
        Err(Failure::no(format!("the service answered {status}")))
    }
}
