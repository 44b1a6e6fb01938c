//! `token create`, `token list`, `token revoke`: who may use the API listener.

use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use crate::config::units;
use crate::domain::{ClientName, Role};
use crate::store::{NewToken, TokenInfo};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::{replay, words};

/// Longest time that a token may be made for.
const LASTS_MAX: Duration = Duration::from_hours(24 * 3_660);

/// Make, list and end the tokens of the API listener.
///
/// While the database holds no token, the API listener answers to whoever is on its machine. From the first
/// one on, every request to it needs one, for good: `Authorization: Bearer oht_...`. A token says which
/// client asks, so the audit trail can tell, and what it may do.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token and print it: now and never again, since only a hash of it is kept.
    ///
    /// A client may have several, so that it can change from an old one to a new one while both are good.
    /// The first token closes the API listener of every node, within a second, to whoever has none.
    #[command(after_help = "Examples:\n\
            \x20 oncehook token create prometheus --role read > /etc/prometheus/oncehook.token\n\
            \x20 oncehook token create support --role read --role operate --expires 90d")]
    Create {
        /// The client's name: in the audit trail as `api:NAME`, and before its idempotency keys.
        #[arg(value_parser = ClientName::parse)]
        name: ClientName,
        /// What it may do; may be given several times. read: every GET, payloads and metrics included.
        /// operate: commands, such as replay, resolve and pause. submit: operations.
        #[arg(long = "role", value_name = "ROLE", required = true, value_parser = Role::ALL.map(Role::as_str))]
        roles: Vec<String>,
        /// How long it lasts, such as "12h" or "90d" [default: until it is revoked].
        #[arg(long, value_name = "TIME", value_parser = lasts)]
        expires: Option<Duration>,
    },
    /// List every token: its client, roles, state and last use, never its secret.
    ///
    /// Revoked and expired ones stay in the list.
    List,
    /// End a token for good.
    ///
    /// Every node refuses it within a second. To change a token, make the new one first.
    #[command(after_help = "Example: oncehook token revoke 3 --reason 'was in a public log'")]
    Revoke {
        /// Its number: the first part of the token after `oht_`, and in `token list`.
        id: i64,
        /// Why; kept in the audit trail.
        #[arg(long, value_parser = replay::reason)]
        reason: String,
    },
}

fn lasts(text: &str) -> Result<Duration, String> {
    let lasts = units::duration(text)?;
    if !(Duration::from_secs(1)..=LASTS_MAX).contains(&lasts) {
        return Err("a token lasts from 1s to 3660d".to_owned());
    }
    Ok(lasts)
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Create {
            name,
            roles,
            expires,
        } => create(context, name, &roles, expires).await,
        Verb::List => list(context).await,
        Verb::Revoke { id, reason } => revoke(context, id, &reason).await,
    }
}

async fn create(
    context: &Context,
    name: ClientName,
    roles: &[String],
    lasts: Option<Duration>,
) -> Result<(), Failure> {
    let new = NewToken {
        name,
        roles: roles.iter().filter_map(|word| Role::parse(word)).collect(),
        lasts,
        actor: context.actor(),
    };
    let made = context.store()?.create_token(&new).await?;
    let (id, text) = (made.token.id(), made.token.text());
    if context.printer.json() {
        return context.printer.value(&json!({
            "id": id,
            "name": new.name.as_str(),
            "roles": new.roles,
            "expires_at": made.expires_at,
            "token": text.expose(),
        }));
    }
    let lasts = made.expires_at.map_or_else(
        || format!("until `token revoke {id}`"),
        |at| format!("until {}", words::moment(at)),
    );
    context.printer.note(format_args!(
        "token {id} of {}, good {lasts}; it is shown only now:",
        new.name.as_str()
    ));
    context.printer.line(text.expose())
}

async fn list(context: &Context) -> Result<(), Failure> {
    let tokens = context.reading_store()?.tokens().await?;
    if context.printer.json() {
        return context.printer.value(&tokens);
    }
    for line in words::table(&tokens.iter().map(cells).collect::<Vec<_>>()) {
        context.printer.line(line)?;
    }
    if tokens.is_empty() {
        context
            .printer
            .note("no tokens: the API listener answers to whoever is on its machine");
    }
    Ok(())
}

/// A line of the list.
fn cells(token: &TokenInfo) -> [String; 6] {
    let roles: Vec<_> = token.roles.iter().map(|role| role.as_str()).collect();
    let state = match (token.revoked_at, &token.revoked_by, token.expires_at) {
        (Some(at), by, _) => format!(
            "revoked {} by {}",
            words::moment(at),
            clean(by.as_deref().unwrap_or_default())
        ),
        (None, _, Some(at)) if token.state == "living" => {
            format!("living until {}", words::moment(at))
        }
        (None, _, Some(at)) => format!("expired {}", words::moment(at)),
        (None, _, None) => "living".to_owned(),
    };
    let used = token.last_used_at.map_or_else(
        || "never used".to_owned(),
        |at| format!("used {}", words::moment(at)),
    );
    [
        token.id.to_string(),
        clean(&token.name).into_owned(),
        roles.join(" "),
        state,
        used,
        format!(
            "made {} by {}",
            words::moment(token.created_at),
            clean(&token.created_by)
        ),
    ]
}

async fn revoke(context: &Context, id: i64, reason: &str) -> Result<(), Failure> {
    let name = context
        .store()?
        .revoke_token(id, reason, &context.actor())
        .await?;
    if context.printer.json() {
        return context
            .printer
            .value(&json!({ "id": id, "name": name, "revoked": true }));
    }
    context.printer.line(format_args!(
        "revoked token {id} of {}: every node refuses it within a second",
        clean(&name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tokens_says_state_and_last_use() {
        let at = "2026-12-01T00:00:00Z".parse().unwrap();
        let token = |id, name: &str| TokenInfo {
            id,
            name: name.to_owned(),
            roles: [Role::Read].into(),
            state: "living",
            created_at: at,
            created_by: "cli:eva".to_owned(),
            expires_at: None,
            last_used_at: None,
            revoked_at: None,
            revoked_by: None,
        };
        let tokens = [
            token(1, "prometheus"),
            TokenInfo {
                roles: [Role::Operate, Role::Read].into(),
                expires_at: Some(at),
                last_used_at: Some(at),
                ..token(2, "support")
            },
            TokenInfo {
                state: "expired",
                expires_at: Some(at),
                ..token(3, "support")
            },
            TokenInfo {
                state: "revoked",
                expires_at: Some(at),
                revoked_at: Some(at),
                revoked_by: Some("cli:e\u{1b}[2Jve".to_owned()),
                ..token(4, "shop")
            },
        ];
        let lines = words::table(&tokens.iter().map(cells).collect::<Vec<_>>());
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_token_lasts_a_second_at_least() {
        assert_eq!(lasts("90d"), Ok(Duration::from_hours(90 * 24)));
        for text in ["0s", "999ms", "4000d", "soon", ""] {
            assert!(lasts(text).is_err(), "{text}");
        }
    }
}
