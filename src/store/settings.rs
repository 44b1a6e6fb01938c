//! The connection URL, with the `sslmode` values that libpq knows, and what stands behind it.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{Config, SslMode, TargetSessionAttrs};

use super::StoreError;

/// Longest wait for one server of the URL, unless the URL says another.
const CONNECT: Duration = Duration::from_secs(5);
/// For all of them, so that the last one is tried too before a pool gives up.
const CONNECT_ALL: Duration = Duration::from_secs(8);

/// How far the server's certificate is checked.
///
/// # Source
///
/// PostgreSQL documentation, libpq, "SSL Support", table of `sslmode` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Encrypt, check nothing (`prefer`, `require`).
    Any,
    /// The chain must lead to a trusted root (`verify-ca`).
    Chain,
    /// And the host name must match (`verify-full`).
    Full,
}

/// Whose the server sessions are that connections have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sessions {
    /// The connection's: PostgreSQL itself, or a pooler in session mode.
    Own,
    /// A pooler's, which lends one for a transaction.
    Lent,
}

/// Connection settings parsed from a URL; honours `sslmode` up to `verify-full` and `sslrootcert`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the URL is called in the configuration.
    pub(super) key: &'static str,
    pub(super) config: Config,
    pub(super) trust: Trust,
    pub(super) root_cert: Option<PathBuf>,
    pub(super) sessions: Sessions,
    direct: Option<Box<Self>>,
}

impl Settings {
    /// Parses `postgresql://...` or a `key=value` string.
    ///
    /// # Errors
    ///
    /// [`StoreError::Url`]; the text never holds the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        Self::parse_key("database.url", url)
    }

    /// For a URL that leads to a pooler in transaction mode: nothing is kept in a session. `direct`
    /// leads past the pooler, for what needs a session: migrations, and the wake-ups of other nodes,
    /// which without it are polled for.
    ///
    /// # Errors
    ///
    /// As [`Settings::parse`], for `direct`.
    pub fn pooled_by_transaction(mut self, direct: Option<&str>) -> Result<Self, StoreError> {
        self.sessions = Sessions::Lent;
        self.direct = direct
            .map(|url| Self::parse_key("database.direct_url", url))
            .transpose()?
            .map(Box::new);
        Ok(self)
    }

    /// For who only reads: a standby will do, or a session that may not write, where the URL names
    /// one server. Of several the one that takes writes is looked for, as always.
    #[must_use]
    pub fn for_reading(mut self) -> Self {
        if self.config.get_hosts().len() <= 1 {
            self.config.target_session_attrs(TargetSessionAttrs::Any);
        }
        self
    }

    /// The way to a session of one's own, if there is one.
    pub(super) fn with_session(&self) -> Option<&Self> {
        match self.sessions {
            Sessions::Own => Some(self),
            Sessions::Lent => self.direct.as_deref(),
        }
    }

    fn parse_key(key: &'static str, url: &str) -> Result<Self, StoreError> {
        Self::read(key, url).map_err(|reason| StoreError::Url(key, reason))
    }

    fn read(key: &'static str, url: &str) -> Result<Self, String> {
        let (rest, mode, root_cert) = take_tls_parameters(url)?;
        let mut config: Config = rest
            .parse()
            .map_err(|_| "not a PostgreSQL URL or key=value string; write postgresql://user@host:5432/database")?;
        let (ssl, trust) = match mode.as_deref() {
            None | Some("prefer" | "allow") => (SslMode::Prefer, Trust::Any),
            Some("disable") => (SslMode::Disable, Trust::Any),
            // As libpq: with a root certificate at hand, `require` checks the chain.
            Some("require") if root_cert.is_some() => (SslMode::Require, Trust::Chain),
            Some("require") => (SslMode::Require, Trust::Any),
            Some("verify-ca") => (SslMode::Require, Trust::Chain),
            Some("verify-full") => (SslMode::Require, Trust::Full),
            Some(_) => {
                return Err(
                    "sslmode must be disable, prefer, require, verify-ca or verify-full".into(),
                );
            }
        };
        config.ssl_mode(ssl);
        // After a failover the old primary may still answer reads.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_connect_timeout().is_none() {
            let servers = u32::try_from(config.get_hosts().len()).unwrap_or(1).max(1);
            config.connect_timeout(CONNECT.min(CONNECT_ALL / servers));
        }
        // A server that has vanished is noticed within half a minute, whoever's turn it is.
        config.keepalives_idle(Duration::from_secs(15));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(15));
        if config.get_application_name().is_none() {
            config.application_name("oncehook");
        }
        Ok(Self {
            key,
            config,
            trust,
            root_cert,
            sessions: Sessions::Own,
            direct: None,
        })
    }

    pub(super) fn application_name(&self) -> &str {
        self.config.get_application_name().unwrap_or_default()
    }

    /// The database's name, for people.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or("(default)")
    }
}

/// The URL without `sslmode` and `sslrootcert`, which tokio-postgres knows in part only.
fn take_tls_parameters(url: &str) -> Result<(String, Option<String>, Option<PathBuf>), String> {
    let mut mode = None;
    let mut root = None;
    let mut keep = |name: &str, value: String| match name {
        "sslmode" => {
            mode = Some(value);
            false
        }
        "sslrootcert" => {
            root = (value != "system").then(|| PathBuf::from(value));
            false
        }
        _ => true,
    };
    let rest = if url.contains("://") {
        match url.split_once('?') {
            None => url.to_owned(),
            Some((base, query)) => {
                let mut kept = Vec::new();
                for pair in query.split('&') {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    if keep(name, percent_decode(value)?) {
                        kept.push(pair);
                    }
                }
                format!("{base}?{}", kept.join("&"))
            }
        }
    } else {
        url.split_ascii_whitespace()
            .filter(|pair| {
                pair.split_once('=')
                    .is_none_or(|(name, value)| keep(name, value.trim_matches('\'').to_owned()))
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    Ok((rest, mode, root))
}

fn percent_decode(text: &str) -> Result<String, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair: Vec<u8> = bytes.by_ref().take(2).collect();
            let decoded = std::str::from_utf8(&pair)
                .ok()
                .and_then(|hex| u8::from_str_radix(hex, 16).ok())
                .ok_or("a % in the URL is not followed by two hex digits")?;
            out.push(decoded);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).map_err(|_| "the URL decodes to invalid UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sslmode_is_read_as_libpq_reads_it() {
        let cases = [
            ("postgresql://u@h/d", SslMode::Prefer, Trust::Any),
            (
                "postgresql://u@h/d?sslmode=disable",
                SslMode::Disable,
                Trust::Any,
            ),
            (
                "postgresql://u@h/d?sslmode=require",
                SslMode::Require,
                Trust::Any,
            ),
            (
                "postgresql://u@h/d?sslmode=require&sslrootcert=/x%20y.pem",
                SslMode::Require,
                Trust::Chain,
            ),
            (
                "postgresql://u@h/d?connect_timeout=3&sslmode=verify-ca",
                SslMode::Require,
                Trust::Chain,
            ),
            (
                "postgresql://u@h/d?sslmode=verify-full&application_name=x",
                SslMode::Require,
                Trust::Full,
            ),
            (
                "host=h user=u dbname=d sslmode=verify-full",
                SslMode::Require,
                Trust::Full,
            ),
        ];
        for (url, ssl, trust) in cases {
            let settings = Settings::parse(url).unwrap();
            assert_eq!(settings.config.get_ssl_mode(), ssl, "{url}");
            assert_eq!(settings.trust, trust, "{url}");
            assert_eq!(settings.database(), "d");
        }
        let with_root =
            Settings::parse("postgresql://u@h/d?sslmode=verify-ca&sslrootcert=/x%20y.pem").unwrap();
        assert_eq!(with_root.root_cert, Some(PathBuf::from("/x y.pem")));
    }

    #[test]
    fn every_server_of_the_url_is_tried_before_the_pool_gives_up() {
        for (url, each_ms) in [
            ("postgresql://u@a/d", 5_000),
            ("postgresql://u@a:1,b:2/d", 4_000),
            ("postgresql://u@a,b,c,d/d", 2_000),
            ("postgresql://u@a,b/d?connect_timeout=9", 9_000),
        ] {
            let settings = Settings::parse(url).unwrap();
            let each = settings.config.get_connect_timeout().copied();
            assert_eq!(each, Some(Duration::from_millis(each_ms)), "{url}");
        }
    }

    #[test]
    fn a_reader_takes_the_server_that_is_named_and_looks_for_the_primary_among_several() {
        for (url, attributes) in [
            ("postgresql://u@a/d", TargetSessionAttrs::Any),
            ("postgresql://u@a,b/d", TargetSessionAttrs::ReadWrite),
        ] {
            let settings = Settings::parse(url).unwrap();
            let written = settings.config.get_target_session_attrs();
            assert_eq!(written, TargetSessionAttrs::ReadWrite, "{url}");
            let settings = settings.for_reading();
            assert_eq!(
                settings.config.get_target_session_attrs(),
                attributes,
                "{url}"
            );
        }
    }

    #[test]
    fn errors_never_hold_the_password() {
        for url in [
            "postgresql://u:hunter2@h:port/d",
            "postgresql://u:hunter2@h/d?sslmode=maybe",
            "hunter2",
        ] {
            let error = Settings::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
