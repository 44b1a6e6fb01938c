//! How our statements travel: prepared once per session, or, where the next transaction has another
//! session, unnamed and with the types of their parameters.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};
use uuid::Uuid;

use super::StoreError;
use super::transaction::Params;

/// A statement that is ready to be sent on one connection.
#[derive(Debug, Clone)]
pub(super) enum Prepared {
    /// The session knows it.
    Named(Statement),
    /// It is parsed anew each time; text, types of the parameters.
    Unnamed(&'static str, Arc<[Type]>),
}

impl Prepared {
    pub(super) async fn query(
        &self,
        client: &Client,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        Ok(match self {
            Self::Named(statement) => client.query(statement, params).await?,
            Self::Unnamed(sql, types) => client.query_typed(sql, &typed(params, types)?).await?,
        })
    }

    /// The number of rows changed.
    pub(super) async fn execute(
        &self,
        client: &Client,
        params: Params<'_>,
    ) -> Result<u64, StoreError> {
        Ok(match self {
            Self::Named(statement) => client.execute(statement, params).await?,
            Self::Unnamed(sql, types) => client.execute_typed(sql, &typed(params, types)?).await?,
        })
    }
}

fn typed<'a>(
    params: Params<'a>,
    types: &[Type],
) -> Result<Vec<(&'a (dyn ToSql + Sync), Type)>, StoreError> {
    // The server would not mind a parameter that its statement does not use.
    if params.len() != types.len() {
        return Err(StoreError::Refused(format!(
            "{} parameters for a statement that takes {}",
            params.len(),
            types.len()
        )));
    }
    Ok(params.iter().copied().zip(types.iter().cloned()).collect())
}

/// What PostgreSQL takes the parameters for. One message, so that all of it runs in one session and
/// one transaction and nothing stays there; under a name that nobody else has. `before` are the
/// settings it begins with.
pub(super) async fn parameter_types(
    client: &Client,
    before: &str,
    sql: &str,
) -> Result<Arc<[Type]>, StoreError> {
    let name = format!("oncehook_{}", Uuid::new_v4().simple());
    let answer = client
        .simple_query(&format!(
            "{before}PREPARE {name} AS {sql};
             SELECT unnest(parameter_types)::oid FROM pg_catalog.pg_prepared_statements WHERE name = '{name}';
             DEALLOCATE {name}"
        ))
        .await?;
    answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .map(|oid| {
            oid.parse().ok().and_then(Type::from_oid).ok_or_else(|| {
                StoreError::Refused(format!("type {oid} of a parameter is not built in"))
            })
        })
        .collect()
}
