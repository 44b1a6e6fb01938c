//! The connection URL, with the `sslmode` values that libpq knows, and what stands behind it.

use std::path::PathBuf;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio_postgres::config::{Config, Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use super::StoreError;

/// Longest wait until a connection is ready, for all servers of the URL together: the last one is
/// tried too before a pool gives up. Each has its share, unless the URL says `connect_timeout`.
const READY: Duration = Duration::from_secs(8);

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
    /// One for each server of the URL, in its order.
    servers: Vec<Config>,
    /// Whether a server that takes no writes will not do.
    pub(super) writes: bool,
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
        self.writes = self.servers.len() > 1;
        self
    }

    /// The way to a session of one's own, if there is one.
    pub(super) fn with_session(&self) -> Option<&Self> {
        match self.sessions {
            Sessions::Own => Some(self),
            Sessions::Lent => self.direct.as_deref(),
        }
    }

    /// The servers in the order in which they are tried.
    pub(super) fn servers(&self) -> Vec<&Config> {
        let mut servers: Vec<&Config> = self.servers.iter().collect();
        let random = |server: &&Config| server.get_load_balance_hosts() == LoadBalanceHosts::Random;
        if servers.iter().any(random) {
            servers.shuffle(&mut rand::rng());
        }
        servers
    }

    /// Longest wait until a connection to one server is ready.
    pub(super) fn server_time(&self) -> Duration {
        let of_url = self.servers.first().and_then(Config::get_connect_timeout);
        of_url.copied().unwrap_or(READY)
    }

    pub(super) fn parse_key(key: &'static str, url: &str) -> Result<Self, StoreError> {
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
        // Asked when the connection is made ready: for a session that is lent it takes more.
        config.target_session_attrs(TargetSessionAttrs::Any);
        // A server that has vanished is noticed within half a minute, whoever's turn it is.
        config.keepalives_idle(Duration::from_secs(15));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(15));
        if config.get_application_name().is_none() {
            config.application_name("oncehook");
        }
        let mut servers = each_server(&config)?;
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX);
        for server in &mut servers {
            if server.get_connect_timeout().is_none() {
                server.connect_timeout(READY / count);
            }
        }
        Ok(Self {
            key,
            servers,
            writes: true,
            trust,
            root_cert,
            sessions: Sessions::Own,
            direct: None,
        })
    }

    pub(super) fn application_name(&self) -> &str {
        let of_first = self.servers.first().and_then(Config::get_application_name);
        of_first.unwrap_or_default()
    }

    /// The database's name, for people.
    pub fn database(&self) -> &str {
        let of_first = self.servers.first().and_then(Config::get_dbname);
        of_first.unwrap_or("(default)")
    }
}

/// A configuration for each server, so that each has a time of its own: the driver's bounds the TCP
/// connection only, and a server that accepts it and says nothing would be waited for.
fn each_server(config: &Config) -> Result<Vec<Config>, String> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let (ports, count) = (config.get_ports(), hosts.len().max(addresses.len()));
    if count == 0 {
        return Err("it names no host".into());
    }
    let fits = |len: usize, alone: usize| len <= alone || len == count;
    if !fits(hosts.len(), 0) || !fits(addresses.len(), 0) || !fits(ports.len(), 1) {
        return Err("hosts, hostaddr and ports are not equally many".into());
    }
    Ok((0..count)
        .map(|n| {
            let mut server = without_hosts(config);
            match hosts.get(n) {
                Some(Host::Tcp(name)) => {
                    server.host(name);
                }
                Some(Host::Unix(folder)) => {
                    server.host_path(folder);
                }
                None => {}
            }
            if let Some(address) = addresses.get(n) {
                server.hostaddr(*address);
            }
            if let Some(port) = ports.get(n).or(ports.first()) {
                server.port(*port);
            }
            server
        })
        .collect())
}

/// All but the servers: there is no taking them out.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    if let Some(user) = config.get_user() {
        copy.user(user);
    }
    if let Some(password) = config.get_password() {
        copy.password(password);
    }
    if let Some(name) = config.get_dbname() {
        copy.dbname(name);
    }
    if let Some(options) = config.get_options() {
        copy.options(options);
    }
    if let Some(name) = config.get_application_name() {
        copy.application_name(name);
    }
    if let Some(time) = config.get_connect_timeout() {
        copy.connect_timeout(*time);
    }
    if let Some(time) = config.get_tcp_user_timeout() {
        copy.tcp_user_timeout(*time);
    }
    if let Some(time) = config.get_keepalives_interval() {
        copy.keepalives_interval(time);
    }
    if let Some(count) = config.get_keepalives_retries() {
        copy.keepalives_retries(count);
    }
    copy.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    copy
}

/// The address of a server, for people.
pub(super) fn address(server: &Config) -> String {
    let host = match server.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => server
            .get_hostaddrs()
            .first()
            .map_or_else(String::new, ToString::to_string),
    };
    format!("{host}:{}", server.get_ports().first().unwrap_or(&5432))
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
            assert_eq!(settings.servers[0].get_ssl_mode(), ssl, "{url}");
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
            ("postgresql://u@a/d", 8_000),
            ("postgresql://u@a:1,b:2/d", 4_000),
            ("postgresql://u@a,b,c,d/d", 2_000),
            ("postgresql://u@a,b/d?connect_timeout=9", 9_000),
        ] {
            let settings = Settings::parse(url).unwrap();
            let each = settings.server_time();
            assert_eq!(each, Duration::from_millis(each_ms), "{url}");
        }
    }

    #[test]
    fn each_server_of_the_url_has_all_that_the_url_says() {
        let says = "d?hostaddr=HOSTADDR&options=-c%20x%3Dy&application_name=n&connect_timeout=3&tcp_user_timeout=4\
                    &keepalives=1&keepalives_idle=5&keepalives_interval=6&keepalives_retries=7\
                    &target_session_attrs=read-only&channel_binding=disable&load_balance_hosts=random\
                    &sslmode=require&sslnegotiation=direct";
        let parsed = |servers: &str, addresses: &str| {
            let says = says.replace("HOSTADDR", addresses);
            Settings::parse(&format!("postgresql://u:p@{servers}/{says}"))
                .unwrap()
                .servers
        };
        let both = parsed("a:1,b:2", "10.0.0.1,10.0.0.2");
        let each = [parsed("a:1", "10.0.0.1"), parsed("b:2", "10.0.0.2")].concat();
        assert_eq!(both, each);
        let names: Vec<String> = both.iter().map(address).collect();
        assert_eq!(names, ["a:1", "b:2"]);
        // Nothing that the driver knows is left out.
        let plain: Config = format!(
            "postgresql://u:p@a:1/{}",
            says.replace("HOSTADDR", "10.0.0.1")
        )
        .replace("&sslmode=require", "")
        .parse()
        .unwrap();
        let mut copy = without_hosts(&plain);
        copy.host("a").hostaddr("10.0.0.1".parse().unwrap()).port(1);
        assert_eq!(copy, plain);
    }

    #[test]
    fn servers_that_do_not_fit_together_are_refused() {
        for url in [
            "user=u dbname=d",
            "postgresql://u@a:1,b:2,c:3/d?hostaddr=10.0.0.1",
            "host=a,b,c port=1,2 user=u",
        ] {
            assert!(Settings::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_reader_takes_the_server_that_is_named_and_looks_for_the_primary_among_several() {
        for (url, writes) in [
            ("postgresql://u@a/d", false),
            ("postgresql://u@a,b/d", true),
        ] {
            let settings = Settings::parse(url).unwrap();
            assert!(settings.writes, "{url}");
            assert_eq!(settings.for_reading().writes, writes, "{url}");
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
