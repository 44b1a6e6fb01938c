//! Tokens of the API listener: made, listed, ended; and what a request's token is judged by.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;

use crate::domain::{ClientName, Known, Role, Token, TokenHash};

use super::query::{time, time_opt};
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError, audit};

const INSERT: &str = include_str!("sql/token_insert.sql");
const REVOKE: &str = include_str!("sql/token_revoke.sql");
const REVOKED: &str = include_str!("sql/token_revoked.sql");
const LIST: &str = include_str!("sql/token_list.sql");
const FIND: &str = include_str!("sql/token_find.sql");
const ANY: &str = include_str!("sql/token_any.sql");
const USED: &str = include_str!("sql/token_used.sql");

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The client that will use it.
    pub name: ClientName,
    /// What it may be used for; at least one.
    pub roles: BTreeSet<Role>,
    /// How long it lasts, to the second; `None` for ever.
    pub lasts: Option<Duration>,
    /// Who makes it; goes into `audit`.
    pub actor: String,
}

/// A token that was made. Only here is its secret; the database has a hash.
#[derive(Debug, Clone)]
pub struct MadeToken {
    /// The token, to be shown once.
    pub token: Token,
    /// When it ends, by the database's clock.
    pub expires_at: Option<Timestamp>,
}

/// A token as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct TokenInfo {
    /// Its public part.
    pub id: i64,
    /// Its client.
    pub name: String,
    /// What it may be used for.
    pub roles: BTreeSet<Role>,
    /// `living`, `expired` or `revoked`.
    pub state: &'static str,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was last accepted, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
}

/// What is found under a token's id.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) known: Known,
    /// The time of its last use may be written again.
    pub(crate) unused: bool,
}

impl Store {
    /// Makes a token. Audited.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] without a role; whatever keeps the database from storing it.
    pub async fn create_token(&self, new: &NewToken) -> Result<MadeToken, StoreError> {
        if new.roles.is_empty() {
            return Err(StoreError::Refused("a token needs a role".into()));
        }
        let secret: [u8; 32] = rand::random();
        // The hash is of the secret alone: the id is given by the insert.
        let hash = Token::new(0, secret).hash();
        let roles: Vec<&str> = new.roles.iter().map(|role| role.as_str()).collect();
        let seconds = new
            .lasts
            .map(|lasts| i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX));
        let (name, actor) = (new.name.as_str(), new.actor.as_str());
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let made = async {
            let rows = transaction
                .query(INSERT, &[&name, &roles, &hash.as_bytes(), &actor, &seconds])
                .await?;
            let row = rows
                .first()
                .ok_or_else(|| StoreError::Unavailable("a token came without a row".into()))?;
            let id: i64 = row.get("id");
            let expires_at = time_opt(row, "expires_at");
            let after = json!({ "name": name, "roles": roles, "expires_at": expires_at });
            let subject = id.to_string();
            audit::record(
                &transaction,
                actor,
                "token.create",
                &subject,
                None,
                None,
                &after,
            )
            .await?;
            Ok(MadeToken {
                token: Token::new(id, secret),
                expires_at,
            })
        }
        .await;
        transaction.end(made).await
    }

    /// Ends a token for good, on every node within a second; the name of its client. Audited.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown id, [`StoreError::Refused`] when it is revoked already.
    pub async fn revoke_token(
        &self,
        id: i64,
        reason: &str,
        actor: &str,
    ) -> Result<String, StoreError> {
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let revoked = async {
            let rows = transaction.query(REVOKE, &[&id, &actor]).await?;
            let Some(row) = rows.first() else {
                let rows = transaction.query(REVOKED, &[&id]).await?;
                return Err(unchanged(id, rows.first()));
            };
            let name: String = row.get("name");
            let (subject, after) = (id.to_string(), json!({ "name": name }));
            audit::record(
                &transaction,
                actor,
                "token.revoke",
                &subject,
                Some(reason),
                None,
                &after,
            )
            .await?;
            Ok(name)
        }
        .await;
        transaction.end(revoked).await
    }

    /// Every token, in the order in which they were made.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn tokens(&self) -> Result<Vec<TokenInfo>, StoreError> {
        let connection = self.queries().await?;
        let rows = connection.query_alone(LIST, &[]).await?;
        Ok(rows.iter().map(info).collect())
    }

    /// Whether there is a token, revoked ones too.
    pub(crate) async fn any_token(&self) -> Result<bool, StoreError> {
        let connection = self.queries().await?;
        let rows = connection.query_by_index(ANY, &[]).await?;
        // An answer that cannot be is none: nothing opens by it.
        Ok(rows.first().is_none_or(|row| row.get(0)))
    }

    /// What a token is judged by.
    pub(crate) async fn find_token(&self, id: i64) -> Result<Option<Found>, StoreError> {
        let connection = self.waiting().await?;
        let rows = connection.query_by_index(FIND, &[&id]).await?;
        Ok(rows.first().and_then(|row| {
            let left = row.get::<_, Option<i64>>("left_us");
            let micros = |us| Duration::from_micros(u64::try_from(us).unwrap_or(0));
            Some(Found {
                known: Known {
                    name: row.get("name"),
                    roles: roles(row),
                    hash: TokenHash::from_bytes(row.get("hash"))?,
                    revoked: row.get("revoked"),
                    left: left.map(micros),
                },
                unused: row.get("unused"),
            })
        }))
    }

    /// Keeps that a token was used now, unless that was done within the minute.
    pub(crate) async fn token_used(&self, id: i64) -> Result<(), StoreError> {
        let connection = self.admin().await?;
        connection.execute_alone(USED, &[&id]).await.map(drop)
    }
}

fn roles(row: &Row) -> BTreeSet<Role> {
    let words: Vec<String> = row.get("roles");
    words.iter().filter_map(|word| Role::parse(word)).collect()
}

fn info(row: &Row) -> TokenInfo {
    let revoked_at = time_opt(row, "revoked_at");
    let state = match (revoked_at, row.get("expired")) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "living",
    };
    TokenInfo {
        id: row.get("id"),
        name: row.get("name"),
        roles: roles(row),
        state,
        created_at: time(row, "created_at"),
        created_by: row.get("created_by"),
        expires_at: time_opt(row, "expires_at"),
        last_used_at: time_opt(row, "last_used_at"),
        revoked_at,
        revoked_by: row.get("revoked_by"),
    }
}

/// Why nothing was changed.
fn unchanged(id: i64, row: Option<&Row>) -> StoreError {
    let Some(row) = row else {
        return StoreError::NotFound(format!("there is no token {id}"));
    };
    let (name, by): (String, Option<String>) = (row.get("name"), row.get("revoked_by"));
    let by = by.unwrap_or_default();
    StoreError::Refused(format!("token {id} of {name} is revoked already, by {by}"))
}
