//! What a judged test has in common: logs, a provider, a service, three handlers.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::{
    BOOKS, Behaviour, Effects, Handler, Judge, Log, Message, Provider, SECRET, SOURCE, Service,
};
use crate::support::{AppBuilder, TestApp};

/// Taken by `ledger` alone.
pub(crate) const PAID: &str = "paid";
/// Taken by `ledger` and `flaky`, which fails some first tries.
pub(crate) const REFUNDED: &str = "refunded";
/// Taken by `ledger` and `shipping`, which calls the [`Service`].
pub(crate) const SHIPPED: &str = "shipped";

/// The secret of `shipping`'s calls.
pub(crate) const CALL_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How long a call of `shipping` waits for its answer, unless the test says otherwise.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(300);

/// Lines of the handlers' configuration: short leases, quick retries, calls that are given up
/// after [`CALL_TIMEOUT`]. The lease of a call is the shortest one that is allowed.
pub(crate) const SQL_LINES: &str =
    "lease = \"1s\"\nretry = { for = \"1h\", first = \"20ms\", max = \"200ms\" }";
/// The receiver of a trial fails half of its calls and more, as long as the trial lasts: no breaker.
pub(crate) const CALL_LINES: &str = "timeout = \"300ms\"\nlease = \"5300ms\"\nretry = { for = \"1h\", first = \"20ms\", max = \"200ms\", share = 10000 }\nbreaker = false";

/// The parties outside, and the judge over them.
pub(crate) struct Trial {
    pub(crate) provider: Provider,
    pub(crate) service: Service,
    pub(crate) judge: Judge,
    logs: [Log; 2],
    /// Removed with the trial.
    folder: Option<TempDir>,
}

impl Trial {
    /// Its logs lie in a temporary folder. `plan` as for [`Service::start`].
    pub(crate) async fn new(
        honours_key: bool,
        plan: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let quick = Duration::from_millis(1);
        let mut trial = Self::in_folder(dir.path().to_owned(), quick, honours_key, plan).await;
        trial.folder = Some(dir);
        trial
    }

    /// Its logs lie in a folder and stay there; lines gather for `pace` before they are synced.
    pub(crate) async fn in_folder(
        folder: PathBuf,
        pace: Duration,
        honours_key: bool,
        plan: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let sent = Log::open(folder.join("sent.jsonl"), pace);
        let applied = Log::open(folder.join("applied.jsonl"), pace);
        let all = |name, takes, effects| Handler {
            name,
            takes,
            effects,
        };
        let judge = Judge {
            sent: sent.path().to_owned(),
            handlers: vec![
                all("ledger", "*", Effects::Booked),
                all("flaky", REFUNDED, Effects::Booked),
                all(
                    "shipping",
                    SHIPPED,
                    Effects::Applied {
                        log: applied.path().to_owned(),
                        honours_key,
                    },
                ),
            ],
        };
        Self {
            provider: Provider::new(sent.clone()),
            service: Service::start(applied.clone(), honours_key, plan).await,
            judge,
            logs: [sent, applied],
            folder: None,
        }
    }

    /// A node with the source and the three handlers, and further lines of these.
    pub(crate) fn app(&self, sql: &str, call: &str) -> AppBuilder {
        self.app_with("on_unknown = \"retry\"", sql, call)
    }

    /// The same with what becomes of calls whose result is unknown.
    pub(crate) fn app_with(&self, on_unknown: &str, sql: &str, call: &str) -> AppBuilder {
        let events = |event_type: &str| format!("events = [\"{SOURCE}:{event_type}\"]");
        let flaky = format!("{}\n{sql}", events(REFUNDED));
        let shipping = format!(
            "{}\nsecrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\n{on_unknown}\n{call}",
            events(SHIPPED)
        );
        TestApp::builder()
            .source(SOURCE, "github", SECRET, "")
            .setup(BOOKS)
            .sql_handler("ledger", "app.book", sql)
            .sql_handler("flaky", "app.book_at_last", &flaky)
            .http_handler("shipping", &self.service.url(), &shipping)
    }

    /// Sends an event that must be acknowledged at once.
    pub(crate) async fn put(&self, app: &TestApp, message: &Message) {
        let told = self.provider.send(app.public, message).await;
        let status = told.map(|told| told.status);
        assert_eq!(status, Some(200), "{message:?}\n{}", app.output());
    }

    /// Returns once everything written so far can be read.
    pub(crate) async fn flush(&self) {
        for log in &self.logs {
            log.flush().await;
        }
    }
}
