//! A stored request, looked at again before its event is replayed.

use jiff::Timestamp;

use crate::domain::Digest;
use crate::provider::{Headers, Request, Source};

use super::super::query::time;
use super::super::{Store, StoreError};
use super::page::Candidate;

const STORED: &str = include_str!("../sql/bulk_stored.sql");

/// A stored request.
#[derive(Debug)]
pub struct StoredRequest {
    /// Source name.
    pub source: String,
    /// When it came.
    pub received_at: Timestamp,
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Query with masked values.
    pub query: Option<String>,
    /// Stored headers, a JSON array of `[name, value]`.
    pub headers: Vec<u8>,
    /// The bytes on the wire.
    pub body: Vec<u8>,
}

/// Finds the source of a stored request and asks [`verify`]: which sources there are is the
/// caller's to know.
pub type Check<'c> = &'c (dyn Fn(&StoredRequest) -> Result<(), String> + Sync);

/// Whether a secret that the source has now verifies the request as of when it came.
///
/// # Errors
///
/// What is wrong, for people.
pub fn verify(source: Option<&Source>, request: &StoredRequest) -> Result<(), String> {
    let source =
        source.ok_or("its source is not configured here, so its signature cannot be checked")?;
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

impl Store {
    /// Whether the stored bytes are those that were received; then what `check` says.
    pub(super) async fn examine(
        &self,
        candidate: &Candidate,
        check: Check<'_>,
    ) -> Result<Result<(), String>, StoreError> {
        let connection = self.admin().await?;
        let rows = connection
            .query_alone(STORED, &[&candidate.found.event_id])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Err("payload-expired: the payload was dropped".to_owned()));
        };
        let request = StoredRequest {
            source: candidate.source.clone(),
            received_at: time(row, "received_at"),
            method: row.get("method"),
            path: row.get("path"),
            query: row.get("query"),
            headers: row.get("headers"),
            body: row.get("body"),
        };
        let place = |column| usize::try_from(row.get::<_, i32>(column)).unwrap_or(usize::MAX);
        let start = place("item_offset");
        let end = start.saturating_add(place("item_length"));
        let item = request.body.get(start..end).unwrap_or_default();
        if Digest::of(item).hex() != candidate.found.raw_digest {
            return Ok(Err(
                "its stored bytes are not those that were received".to_owned()
            ));
        }
        Ok(check(&request))
    }
}
