//! `[[operation]]`: one of your own API's calls, made idempotent.

use std::time::Duration;

use jiff::Timestamp;

use crate::dispatch::{HandlerSpec, SpecError};
use crate::domain::operation::{OnFailure, OperationSpec, Profile};

use super::handler;
use super::secret::Vault;
use super::section::Section;
use super::source::{SourceSettings, name};
use super::units;

/// Connections between client and node are cut before long.
const WAIT_MAX: Duration = Duration::from_mins(10);

/// Reads every `[[operation]]`: the handlers that do them, and the names also of those that cannot be read. Their
/// sources are named after them.
pub(super) fn read_all(
    root: &Section<'_>,
    vault: Vault<'_>,
    now: Timestamp,
    sources: &[SourceSettings],
    handlers: &[HandlerSpec],
) -> (Vec<HandlerSpec>, Vec<String>) {
    let mut names: Vec<String> = Vec::new();
    let mut operations = Vec::new();
    for mut section in root.list("operation", "[[operation]]") {
        let name = name(&mut section, "operation", &mut names);
        let taken = name.as_ref().is_some_and(|name| {
            sources.iter().any(|s| s.source.name == *name)
                || handlers.iter().any(|h| h.name == *name)
        });
        if taken {
            section.error("name", SpecError::NameTaken.to_string());
        }
        let spec = read(&section);
        let operation = handler::of_operation(&section, name, spec, vault, now);
        section.finish();
        operations.extend(operation);
    }
    (operations, names)
}

/// A time, or "forever"; `otherwise` where nothing is said.
fn kept(section: &Section<'_>, key: &'static str, otherwise: Option<Duration>) -> Option<Duration> {
    let written = section.parsed(key, |text| match text {
        "forever" => Ok(None),
        text => units::duration(text).map(Some),
    });
    written.unwrap_or(otherwise)
}

fn read(section: &Section<'_>) -> OperationSpec {
    section.refuse(
        &["events"],
        "belongs to [[handler]]: an operation takes the requests to /v1/operations/{name}",
    );
    let defaults = OperationSpec::default();
    let texts = |key| {
        let written = section.texts(key).unwrap_or_default();
        written.into_iter().map(|(text, _)| text)
    };
    let spec = OperationSpec {
        volatile: texts("volatile").map(str::to_owned).collect(),
        wait: section.duration("wait").unwrap_or(defaults.wait),
        wait_max: section.duration("wait_max").unwrap_or(defaults.wait_max),
        profile: section
            .word(
                "profile",
                &[("standard", Profile::Standard), ("ietf", Profile::Ietf)],
            )
            .unwrap_or_default(),
        on_failure: section
            .word(
                "on_failure",
                &[("release", OnFailure::Release), ("keep", OnFailure::Keep)],
            )
            .unwrap_or_default(),
        headers: texts("headers").map(str::to_ascii_lowercase).collect(),
        keep_key: kept(section, "keep_key", defaults.keep_key),
        keep_response: kept(section, "keep_response", defaults.keep_response),
    };
    if spec.wait_max > WAIT_MAX {
        section.error(
            "wait_max",
            "`wait_max` must not be longer than 10m: connections are cut before that",
        );
    }
    spec
}
