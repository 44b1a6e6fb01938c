//! `resolve`: a person's decision about a call whose result is not known, or about a held delivery.

use crate::store::{Resolution, ResolveRequest};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::replay::reason;

const EXAMPLES: &str = "Examples:\n\
    \x20 oncehook resolve stripe-main evt_1 --handler payout --as succeeded --reason 'found in their dashboard' --evidence po_81\n\
    \x20 oncehook resolve stripe-main evt_1 --handler payout --as retry --reason 'their support: never arrived'";

/// Decide about a call whose result is not known, or about a lane that is held.
///
/// Of an uncertain delivery, find out what the receiver did with the effect key that `show` prints, then
/// say it. `retry` sends the call again under the same effect key, and is refused while it may still be
/// under way. What contradicts a late answer that is kept is refused. `probe` decides nothing: the receiver is asked
/// at once, and then as often and at such intervals as the handler's `probe` says. Of a held one, `retry` begins a
/// new run at the head of its lane; any other decision ends it,
/// and the lane goes on. Nothing else is decided this way.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Source name.
    source: String,
    /// Event key, or the provider's event id where only one event has it.
    key: String,
    /// Handler whose delivery it is.
    #[arg(long)]
    handler: String,
    /// What became of it: succeeded, failed (a final no), retry (not applied: try again), dead (given up); or
    /// probe (have the receiver asked again).
    #[arg(long = "as", value_name = "DECISION", value_parser = Resolution::ALL.map(Resolution::as_str))]
    decision: String,
    /// Why; kept in the outcome and in the audit trail.
    #[arg(long, value_parser = reason)]
    reason: String,
    /// Where it was seen, such as the receiver's id of the payment; kept in the audit trail.
    #[arg(long, value_name = "TEXT")]
    evidence: Option<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let resolution = Resolution::parse(&args.decision)
        .ok_or_else(|| Failure::usage(format!("{:?} is no decision", args.decision)))?;
    let request = ResolveRequest {
        source: args.source,
        key: args.key,
        handler: args.handler,
        resolution,
        reason: args.reason,
        evidence: args.evidence,
        actor: context.actor(),
    };
    let resolved = context.store()?.resolve(&request).await?;
    if context.printer.json() {
        return context.printer.value(&resolved);
    }
    let word = match resolution {
        Resolution::Retry => "ready",
        Resolution::Probe => "asked again",
        _ => resolved.resolved_as,
    };
    context.printer.line(format_args!(
        "{word}: {} {} {} run {}, effect key {}",
        clean(&resolved.source),
        clean(&resolved.key),
        clean(&resolved.handler),
        resolved.new_run.unwrap_or(resolved.run),
        resolved.effect_key
    ))
}
