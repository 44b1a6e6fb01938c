//! The subscriber of the binary: lines on stderr.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt};

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The level or `RUST_LOG` is not a filter.
    #[error(
        "{0:?} is not a log filter: write a level (error, warn, info, debug, trace) or target=level, separated by commas"
    )]
    Filter(String),
    /// Another subscriber is at work in this process.
    #[error("logging is set up already")]
    Twice,
}

/// Writes log lines to stderr from now on.
///
/// `filter` is a level or the syntax of `RUST_LOG`. Whatever it says, other crates are never heard
/// below `warn`: the PostgreSQL driver logs statement parameters, the HTTP server logs heads, and
/// both would carry payloads. For the same reason records of the `log` facade, which that driver
/// uses, are not taken up at all. `actix_http` is not heard either: every stranger that sends broken
/// HTTP would write an error line.
///
/// # Errors
///
/// [`LogError`]; nothing is set up then.
pub fn start(filter: &str, form: Form) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(|_| LogError::Filter(filter.to_owned()))?;
    let quiet = filter_fn(|metadata| {
        is_ours(metadata.target())
            || (*metadata.level() <= Level::WARN && !metadata.target().starts_with("actix_http"))
    });
    let lines = match form {
        Form::Json => fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .with_writer(std::io::stderr)
            .boxed(),
        Form::Text => fmt::layer()
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .boxed(),
    };
    let subscriber = Registry::default()
        .with(filter)
        .with(lines.with_filter(quiet));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)
}

fn is_ours(target: &str) -> bool {
    target == "oncehook" || target.starts_with("oncehook::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_targets_are_heard_below_warn() {
        assert!(is_ours("oncehook"));
        assert!(is_ours("oncehook::ingest::queue"));
        assert!(!is_ours("oncehook_evil"));
        assert!(!is_ours("tokio_postgres::query"));
    }

    #[test]
    fn a_broken_filter_is_said() {
        assert!(matches!(
            start("=loud=", Form::Json),
            Err(LogError::Filter(_))
        ));
    }
}
