//! The database of `dev`: a private cluster, or the one of `DATABASE_URL`.

use std::fs;
use std::path::Path;

use anyhow::anyhow;

use crate::embedded::{self, Cluster, EmbeddedError, Options};

use super::super::context::Context;
use super::super::failure::{Exit, Failure};

const NAME: &str = "oncehook";

/// The database of `dev`.
#[derive(Debug)]
pub(super) struct Database {
    url: String,
    /// `None` for a database that is not ours to stop.
    cluster: Option<Cluster>,
}

impl Database {
    pub(super) async fn open(
        context: &Context,
        folder: &Path,
        fresh: bool,
    ) -> Result<Self, Failure> {
        if let Some(url) = context.environment.get("DATABASE_URL") {
            if fresh {
                return Err(Failure::usage("--fresh does not empty the database of DATABASE_URL")
                    .hint("unset DATABASE_URL for a private one, or drop the schemas oncehook and app yourself"));
            }
            context.printer.note("using the database of DATABASE_URL");
            return Ok(Self {
                url: url.to_owned(),
                cluster: None,
            });
        }
        let data = folder.join("postgresql");
        if fresh {
            context
                .printer
                .note("removing the private database and the sample configuration ...");
            let data = data.clone();
            blocking(move || embedded::wipe(data)).await?;
            // Absent is as good as removed.
            drop(fs::remove_file(folder.join("dev.toml")));
        }
        context.printer.note("starting a private PostgreSQL ...");
        let cluster = blocking(move || Cluster::start(Options::new(data))).await?;
        if let Some(moved) = cluster.moved() {
            context.printer.note(moved);
        }
        cluster.create_database(NAME).await.map_err(failure)?;
        Ok(Self {
            url: cluster.url(NAME),
            cluster: Some(cluster),
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Stops what was started.
    pub(super) async fn close(&mut self) -> Result<(), Failure> {
        match self.cluster.take() {
            Some(mut cluster) => blocking(move || cluster.stop()).await,
            None => Ok(()),
        }
    }
}

/// Starting and stopping a cluster waits for processes.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EmbeddedError> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(Exit::No, error))?
        .map_err(failure)
}

fn failure(error: EmbeddedError) -> Failure {
    Failure::new(Exit::Unreachable, anyhow!(error)).context("the private PostgreSQL does not run")
}
