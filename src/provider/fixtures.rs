//! Runs every case of `fixtures/<provider>/`; the layout stands in `fixtures/README.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Headers, NAMES, Options, Request, build};
use crate::domain::{Item, Mode, Reading, Secret, SecretText};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    secrets: Vec<String>,
    public_keys: Vec<String>,
    options: CaseOptions,
    now_unix: i64,
    expect: Expect,
    origin: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseOptions {
    dialect: Option<String>,
    tolerance_s: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    verify: bool,
    reason: Option<String>,
    #[serde(default)]
    reason_any: Vec<String>,
    events: Option<Vec<Event>>,
    reply: Option<Answer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    key_parts: Vec<String>,
    entity: Option<String>,
    account: Option<String>,
    livemode: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    status: u16,
    body: String,
}

#[test]
fn every_recorded_case_is_judged_as_expected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut cases = 0;
    for provider in NAMES {
        for folder in folders(&root.join(provider)) {
            run(provider, &folder);
            cases += 1;
        }
    }
    assert!(cases >= 41, "only {cases} cases were found");
}

/// The folders of cases of one provider, in order.
fn folders(provider: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(provider) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() && !path.ends_with("samples"))
        .collect();
    folders.sort();
    folders
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&fs::read(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(provider: &str, folder: &Path) {
    let place = folder.display();
    let sent: Sent = read(&folder.join("request.json"));
    let case: Case = read(&folder.join("case.json"));
    assert!(!case.origin.is_empty(), "{place}");
    let body = fs::read(folder.join("body")).unwrap();
    let options = Options {
        dialect: case.options.dialect.clone(),
        tolerance: case.options.tolerance_s.map(Duration::from_secs),
        ..Options::default()
    };
    let provider = build(provider, &options).unwrap();
    let headers: Headers = sent.headers.into_iter().collect();
    let path = sent.url.splitn(4, '/').nth(3).unwrap_or_default();
    let request = Request {
        method: &sent.method,
        target: &format!("/{path}"),
        headers: &headers,
        body: &body,
    };
    let secrets: Vec<Secret> = case
        .secrets
        .iter()
        .chain(&case.public_keys)
        .map(|text| Secret {
            label: "main".to_owned(),
            key: provider.key(&SecretText::new(text), false).unwrap(),
            until: None,
        })
        .collect();
    let now = Timestamp::from_second(case.now_unix).unwrap();
    let verified = provider.verify(&request, &secrets, now);
    let refusal = match &verified {
        Ok(verified) => verified.refused_items.first().map(|(_, refusal)| *refusal),
        Err(refusal) => Some(*refusal),
    };
    assert_eq!(
        refusal.is_none(),
        case.expect.verify,
        "{place}: {refusal:?}"
    );
    if let Some(refusal) = refusal {
        let reasons = case.expect.reason.iter().chain(&case.expect.reason_any);
        let reasons: Vec<&str> = reasons.map(String::as_str).collect();
        assert!(reasons.contains(&refusal.code()), "{place}: {refusal:?}");
    }
    let items = verified.map_or_else(
        |_| Vec::new(),
        |verified| provider.unwrap(&request, &verified),
    );
    if let Some(events) = &case.expect.events {
        assert_eq!(items.len(), events.len(), "{place}: {items:?}");
        let readable = case.expect.reason.as_deref() != Some("malformed_body");
        for (item, event) in items.iter().zip(events) {
            judge(&place.to_string(), item, event, readable);
        }
    }
    if let Some(answer) = &case.expect.reply {
        let reply = provider.acknowledge().unwrap();
        assert_eq!(reply.status, answer.status, "{place}");
        assert_eq!(reply.body, answer.body.as_bytes(), "{place}");
    }
}

fn judge(place: &str, item: &Item, event: &Event, readable: bool) {
    assert_eq!(item.reading == Reading::Event, readable, "{place}");
    assert_eq!(item.provider_id, event.id, "{place}");
    if event.kind.is_some() {
        assert_eq!(item.event_type, event.kind, "{place}");
    }
    if event.entity.is_some() {
        assert_eq!(item.entity, event.entity, "{place}");
    }
    if event.account.is_some() {
        assert_eq!(item.account, event.account, "{place}");
    }
    if let Some(live) = event.livemode {
        let mode = if live { Mode::Live } else { Mode::Test };
        assert_eq!(item.mode, Some(mode), "{place}");
    }
    assert!(
        holds(item.key.as_str(), event.id.iter().chain(&event.key_parts)),
        "{place}: {}",
        item.key
    );
}

/// Whether the key holds the texts as parts, in this order.
fn holds<'a>(key: &str, parts: impl Iterator<Item = &'a String>) -> bool {
    let mut own = key.split(':');
    parts
        .flat_map(|part| match part.strip_prefix("sha256:") {
            Some(digest) => vec!["sha256".to_owned(), digest.to_owned()],
            None => vec![part.replace('%', "%25").replace(':', "%3A")],
        })
        .all(|part| own.any(|held| held == part))
}
