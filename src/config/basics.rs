//! The tables with one value per key: `[database] [listen] [limits] [dispatch] [log]`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::domain::SecretText;

use super::secret::Vault;
use super::section::Section;

/// `[database]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// Connection URL, with its password.
    pub url: SecretText,
    /// What the URL leads to.
    pub pooling: Pooling,
    /// The way past a pooler in transaction mode.
    pub direct_url: Option<SecretText>,
}

/// What `database.url` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// PostgreSQL itself, or a pooler in session mode.
    Session,
    /// A pooler in transaction mode.
    Transaction,
}

/// `[listen]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// Webhooks and health.
    pub public: SocketAddr,
    /// Status, commands and metrics; not on loopback, it needs a token in the database.
    pub api: SocketAddr,
    /// How long requests are still accepted after `/readyz` began to answer 503.
    pub drain: Duration,
}

/// `[limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body on the wire.
    pub body: usize,
    /// Bytes of the request's head.
    pub headers: usize,
    /// Time a request may take to arrive.
    pub body_time: Duration,
    /// Bytes that may wait for their commit.
    pub queue: usize,
    /// Clients of operations that may wait at once.
    pub waiting: usize,
}

/// `[dispatch]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// Whether this node runs handlers.
    pub enabled: bool,
    /// Time between looks for ready deliveries.
    pub poll: Duration,
    /// Time running handlers have to end at shutdown.
    pub grace: Duration,
    /// Database connections of the dispatcher.
    pub connections: usize,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Lowest level written: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// Form of a line.
    pub format: LogFormat,
}

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

const POOLING: [(&str, Pooling); 2] = [
    ("session", Pooling::Session),
    ("transaction", Pooling::Transaction),
];

pub(super) fn database(root: &Section<'_>, vault: Vault<'_>) -> Option<Database> {
    let Some(section) = root.below("database", "[database]") else {
        root.error(
            "database",
            "[database] is missing: write url = \"env:DATABASE_URL\" below it, or set ONCEHOOK_DATABASE__URL",
        );
        return None;
    };
    let resolved = |key, written| match vault.resolve(written) {
        Ok(url) if url.expose().trim().is_empty() => {
            section.error(
                key,
                format!("`{key}` is empty: write postgresql://user@host/database"),
            );
            None
        }
        Ok(url) => Some(url),
        Err(message) => {
            section.error(key, format!("`{key}`: {message}"));
            None
        }
    };
    let url = section
        .required(
            "url",
            "write url = \"env:DATABASE_URL\", or set ONCEHOOK_DATABASE__URL",
        )
        .and_then(|written| resolved("url", written));
    let pooling = if section.has("pooling") {
        section.word("pooling", &POOLING)
    } else {
        section.value("pooling");
        Some(Pooling::Session)
    };
    let direct_url = section
        .text("direct_url")
        .and_then(|written| resolved("direct_url", written));
    if pooling == Some(Pooling::Session) && section.has("direct_url") {
        section.error(
            "direct_url",
            "`direct_url` is the way past a pooler in transaction mode: set pooling = \"transaction\" if `url` leads to one, else leave it out",
        );
    }
    section.finish();
    Some(Database {
        url: url?,
        pooling: pooling?,
        direct_url,
    })
}

pub(super) fn listen(root: &Section<'_>) -> Option<Listen> {
    let section = root.below("listen", "[listen]")?;
    let public = section.address("public");
    let api = section.address("api");
    if let (Some(public), Some(api)) = (public, api)
        && public == api
        && public.port() != 0
    {
        section.error("api", "`api` and `public` must be two addresses");
    }
    let drain = section.duration("drain");
    section.finish();
    Some(Listen {
        public: public?,
        api: api?,
        drain: drain?,
    })
}

pub(super) fn limits(root: &Section<'_>) -> Option<Limits> {
    let section = root.below("limits", "[limits]")?;
    let body = section.size("body", &(1_024..=67_108_864));
    let headers = section.size("headers", &(4_096..=1_048_576));
    let body_time = section.positive("body_time");
    let queue = section.size("queue", &(1_048_576..=17_179_869_184));
    let waiting = section
        .integer("waiting", &(0..=1_000_000))
        .and_then(|n| usize::try_from(n).ok());
    if let (Some(body), Some(queue)) = (body, queue)
        && body > queue
    {
        section.error("queue", "`queue` must hold at least one `body`");
    }
    section.finish();
    Some(Limits {
        body: body?,
        headers: headers?,
        body_time: body_time?,
        queue: queue?,
        waiting: waiting?,
    })
}

pub(super) fn dispatch(root: &Section<'_>) -> Option<Dispatch> {
    let section = root.below("dispatch", "[dispatch]")?;
    let enabled = section.flag("enabled");
    let poll = section.positive("poll");
    let grace = section.duration("grace");
    let connections = section
        .integer("connections", &(1..=128))
        .and_then(|n| usize::try_from(n).ok());
    section.finish();
    Some(Dispatch {
        enabled: enabled?,
        poll: poll?,
        grace: grace?,
        connections: connections?,
    })
}

pub(super) fn log(root: &Section<'_>) -> Option<Log> {
    let section = root.below("log", "[log]")?;
    let level = section.word(
        "level",
        &["error", "warn", "info", "debug", "trace"].map(|word| (word, word)),
    );
    let format = section.word(
        "format",
        &[
            ("auto", LogFormat::Auto),
            ("json", LogFormat::Json),
            ("text", LogFormat::Text),
        ],
    );
    section.finish();
    Some(Log {
        level: level?.to_owned(),
        format: format?,
    })
}
