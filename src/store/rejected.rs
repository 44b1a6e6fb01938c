//! Samples of refused requests; counters elsewhere stay exact.

use std::net::IpAddr;

use super::{Store, StoreError};
use crate::domain::{Digest, Refusal};

const INSERT: &str = include_str!("sql/rejected_insert.sql");

/// One sampled refusal.
#[derive(Debug, Clone)]
pub(crate) struct NewRejected {
    pub(crate) source_id: Option<i32>,
    pub(crate) refusal: Refusal,
    pub(crate) digest: Option<Digest>,
    pub(crate) size: u64,
    pub(crate) peer: Option<IpAddr>,
}

impl Store {
    /// Stores a handful of refusals.
    pub(crate) async fn record_rejected(&self, rejected: &[NewRejected]) -> Result<(), StoreError> {
        let sources: Vec<Option<i32>> = rejected.iter().map(|r| r.source_id).collect();
        let reasons: Vec<&str> = rejected.iter().map(|r| r.refusal.code()).collect();
        let digests: Vec<Option<&[u8]>> = rejected
            .iter()
            .map(|r| r.digest.as_ref().map(|d| d.as_bytes().as_slice()))
            .collect();
        let sizes: Vec<i64> = rejected
            .iter()
            .map(|r| i64::try_from(r.size).unwrap_or(i64::MAX))
            .collect();
        let peers: Vec<Option<String>> = rejected
            .iter()
            .map(|r| r.peer.map(|p| p.to_string()))
            .collect();
        let connection = self.admin().await?;
        connection
            .execute_alone(INSERT, &[&sources, &reasons, &digests, &sizes, &peers])
            .await
            .map(drop)
    }
}
