//! `operations list`, `operations show`: where the operations of clients stand.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use uuid::Uuid;

use crate::config::units;
use crate::domain::operation::{IdempotencyKey, Listed, State, safe_key};
use crate::domain::{ClientName, EventKey};
use crate::http::{Answered, Status};
use crate::store::{OperationFilter, Store, StoreError};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::words::{self, moment};

/// List operations and show one: its state, times, tries and answer.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List operations, newest first.
    #[command(after_help = "Example: oncehook operations list --state uncertain --older-than 10m")]
    List {
        /// Only of this operation.
        #[arg(long)]
        operation: Option<String>,
        /// Only in this state.
        #[arg(long, value_parser = ["processing", "uncertain", "completed", "failed"])]
        state: Option<String>,
        /// Only those whose key was reserved so long ago or longer.
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        older_than: Option<Duration>,
        /// How many, 1 to 500.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
        limit: u16,
        /// Only those before this id (`next` of the page before).
        #[arg(long, value_name = "ID")]
        before: Option<Uuid>,
    },
    /// Show one operation, by its key or its id.
    #[command(after_help = "Examples:\n\
            \x20 oncehook operations show create_payment order-17 --client shop\n\
            \x20 oncehook operations show --id 0197a3c2-5b1e-7c6f-8d90-1b2c3d4e5f60")]
    Show {
        /// Name of the operation.
        #[arg(required_unless_present = "id", requires = "key")]
        operation: Option<String>,
        /// The Idempotency-Key, without quotes.
        key: Option<String>,
        /// Whose key: the name of the client's token.
        #[arg(long, default_value = ClientName::LOCAL)]
        client: String,
        /// The operation's id, in place of its key.
        #[arg(long, conflicts_with_all = ["operation", "key", "client"])]
        id: Option<Uuid>,
    },
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::List {
            operation,
            state,
            older_than,
            limit,
            before,
        } => {
            let filter = OperationFilter {
                operation,
                state: state.as_deref().and_then(State::named),
                created_before: older_than.and_then(|age| Timestamp::now().checked_sub(age).ok()),
                before,
                limit,
            };
            list(context, &filter).await
        }
        Verb::Show {
            operation,
            key,
            client,
            id,
        } => {
            let name = operation.unwrap_or_default();
            show(context, &name, &key.unwrap_or_default(), &client, id).await
        }
    }
}

async fn list(context: &Context, filter: &OperationFilter) -> Result<(), Failure> {
    let rows = context.reading_store()?.list_operations(filter).await?;
    let all: Vec<Status> = rows
        .iter()
        .map(|row| Status::of_row(row).for_list())
        .collect();
    let full = all.len() == usize::from(filter.limit);
    let next = all.last().filter(|_| full).map(|last| last.id);
    if context.printer.json() {
        let page = serde_json::json!({ "operations": all, "next": next });
        return context.printer.value(&page);
    }
    let now = Timestamp::now();
    let cells: Vec<_> = all.iter().map(|status| cells(status, now)).collect();
    for line in words::table(&cells) {
        context.printer.line(line)?;
    }
    if all.is_empty() {
        context.printer.note("no such operations");
    }
    if let Some(next) = next {
        context
            .printer
            .note(format_args!("more: add --before {next}"));
    }
    Ok(())
}

/// A line of the list.
fn cells(status: &Status, now: Timestamp) -> [String; 7] {
    let result = status.outcome.as_ref().map_or("-", |ended| ended.result);
    [
        moment(status.created_at),
        words::age(status.created_at, now),
        status.state.to_owned(),
        result.to_owned(),
        clean(&status.operation).into_owned(),
        clean(&status.client).into_owned(),
        clean(&status.key).into_owned(),
    ]
}

async fn show(
    context: &Context,
    operation: &str,
    key: &str,
    client: &str,
    id: Option<Uuid>,
) -> Result<(), Failure> {
    let store = context.reading_store()?;
    let found = if let Some(id) = id {
        store.operation_by_id(id).await?
    } else {
        let key = IdempotencyKey::of(key).map_err(|fault| Failure::usage(fault.to_string()))?;
        let key = key
            .event_key(client)
            .map_err(|error| Failure::usage(error.to_string()))?;
        by_key(&store, operation, key).await?
    };
    let Some(found) = found else {
        return Err(Failure::no("there is no such operation").hint(format!(
            "`{} operations list` lists them; a key belongs to a client: --client NAME",
            words::program(&context.environment)
        )));
    };
    let status = Status::of_row(&found);
    if context.printer.json() {
        return context.printer.value(&status);
    }
    let hash = safe_key(&status.operation, &found.key);
    for line in words::table(&lines(&status, &hash)) {
        context.printer.line(line)?;
    }
    Ok(())
}

/// The operation under a key, whether or not it is configured here.
async fn by_key(
    store: &Store,
    operation: &str,
    key: EventKey,
) -> Result<Option<Listed>, StoreError> {
    let found = match store.find(operation, key.as_str()).await {
        Ok(found) if found.key == key => found,
        Ok(_) | Err(StoreError::NotFound(_) | StoreError::Refused(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let records = store.operations(&[(found.source_id, &key)]).await?;
    Ok(records.into_iter().flatten().next().map(|record| Listed {
        operation: operation.to_owned(),
        key,
        record,
    }))
}

/// The page for people.
fn lines(status: &Status, hash: &str) -> Vec<[String; 2]> {
    let mut lines = vec![
        ("operation", clean(&status.operation).into_owned()),
        ("client", clean(&status.client).into_owned()),
        ("key", clean(&status.key).into_owned()),
        ("hash in logs", hash.to_owned()),
        ("id", status.id.to_string()),
        ("state", status.state.to_owned()),
        (
            "run",
            format!("{}, {} tries recorded", status.run, status.attempts),
        ),
        ("reserved", moment(status.created_at)),
        ("changed", moment(status.updated_at)),
    ];
    let mut add = |name, text: Option<String>| {
        if let Some(text) = text {
            lines.push((name, text));
        }
    };
    add("next check", status.next_check_at.map(moment));
    add("key expires", status.expires_at.map(moment));
    add("correlation", Some(status.correlation_id.to_string()));
    let cleaned = |text: &Option<String>| text.as_deref().map(|text| clean(text).into_owned());
    add("resource", cleaned(&status.resource));
    add("external id", cleaned(&status.external_id));
    add(
        "result",
        status.outcome.as_ref().map(|ended| {
            let reason = ended
                .reason
                .as_deref()
                .map(|text| format!(": {}", clean(text)));
            format!(
                "{} by {}, {}{}",
                ended.result,
                ended.decided_by,
                moment(ended.at),
                reason.unwrap_or_default()
            )
        }),
    );
    add(
        "response",
        status.response.as_ref().map(|response| match response {
            Answered::Expired { .. } => "not kept any more".to_owned(),
            Answered::Kept {
                status,
                headers,
                bytes,
                ..
            } => {
                let media = headers.iter().find(|(name, _)| name == "content-type");
                let media = media.map_or("no type", |(_, media)| media.as_str());
                format!("{status}, {bytes} bytes, {}", clean(media))
            }
        }),
    );
    lines
        .into_iter()
        .map(|(name, text)| [name.to_owned(), text])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Ended;

    fn status(key: &str) -> Status {
        let at = "2026-12-01T00:00:00Z".parse().unwrap();
        Status {
            id: Uuid::nil(),
            operation: "create_payment".into(),
            client: "shop".into(),
            key: key.into(),
            state: "completed",
            run: 1,
            attempts: 2,
            created_at: at,
            updated_at: at,
            expires_at: None,
            next_check_at: None,
            correlation_id: Uuid::nil(),
            resource: Some("pay_\u{1b}[2J1".into()),
            external_id: None,
            outcome: Some(Ended {
                result: "failed",
                decided_by: "operator",
                at,
                reason: Some("seen\nforged".into()),
            }),
            response: Some(Answered::Kept {
                status: 422,
                headers: vec![("content-type".into(), "application/json".into())],
                bytes: 17,
                body: None,
                body_base64: None,
            }),
        }
    }

    #[test]
    fn what_clients_wrote_cannot_steer_the_terminal() {
        let now = "2026-12-01T01:00:00Z".parse().unwrap();
        let hostile = status("a\u{1b}[31m\u{202e}");
        let list = words::table(&[cells(&hostile, now), cells(&status("order-17"), now)]);
        let page = words::table(&lines(&hostile, "0123456789abcdef"));
        insta::assert_snapshot!(format!("{}\n\n{}", list.join("\n"), page.join("\n")));
    }
}
