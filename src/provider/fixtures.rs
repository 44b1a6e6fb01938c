//! Runs every case under `fixtures/<provider>/<case>/`: a new case needs no code.
//!
//! `body` holds the exact bytes, `request.json` method, URL and headers, `case.json` secrets,
//! options, clock, what must come out and where the case is from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{Headers, HmacOptions, Options, Provider, Request, build};
use crate::domain::{Digest, EventKey, Item, Mode, Reading, Refusal, Secret, SecretText};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    secrets: Vec<String>,
    /// Each counts as a further secret.
    public_keys: Vec<String>,
    options: BTreeMap<String, Value>,
    now_unix: i64,
    expect: Expect,
    source: String,
    #[serde(default)]
    #[expect(dead_code, reason = "for people")]
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    /// Whether every item holds.
    verify: bool,
    reason: Option<String>,
    #[serde(default)]
    reason_any: Vec<String>,
    /// In the order of the body, an item repeated in it counted once; `None` = not judged.
    events: Option<Vec<Event>>,
    #[serde(default)]
    reply: Option<Answer>,
    /// Stored, never run.
    #[serde(default)]
    ignored: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Stand in the key in this order.
    #[serde(default)]
    key_parts: Vec<String>,
    #[serde(default)]
    entity: Option<String>,
    #[serde(default)]
    account: Option<String>,
    #[serde(default)]
    livemode: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    status: u16,
    body: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
}

/// A case made ready to run.
struct Ready {
    name: String,
    case: Case,
    provider: Arc<dyn Provider>,
    secrets: Vec<Secret>,
    method: String,
    target: String,
    headers: Headers,
    body: Vec<u8>,
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(of)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    all
}

fn cases() -> Vec<Ready> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    folders(&root)
        .iter()
        .flat_map(|preset| {
            let name = preset.file_name().unwrap().to_str().unwrap().to_owned();
            folders(preset)
                .into_iter()
                .filter(|folder| !folder.ends_with("samples"))
                .map(move |folder| load(&name, &folder))
        })
        .collect()
}

fn load(preset: &str, folder: &Path) -> Ready {
    let name = folder.display().to_string();
    let json = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let case: Case = serde_json::from_str(&json("case.json")).expect(&name);
    let sent: Sent = serde_json::from_str(&json("request.json")).expect(&name);
    assert!(!case.source.is_empty(), "{name}: says where it is from");
    let provider = build(preset, &options(&case.options)).expect(&name);
    let secrets = case
        .secrets
        .iter()
        .chain(&case.public_keys)
        .enumerate()
        .map(|(index, text)| Secret {
            label: (index + 1).to_string(),
            key: provider.key(&SecretText::new(text), false).expect(&name),
            until: None,
        })
        .collect();
    let path = sent.url.splitn(4, '/').nth(3).unwrap_or_default();
    Ready {
        case,
        provider,
        secrets,
        method: sent.method,
        target: format!("/{path}"),
        headers: sent.headers.into_iter().collect(),
        body: std::fs::read(folder.join("body")).unwrap(),
        name,
    }
}

fn options(given: &BTreeMap<String, Value>) -> Options {
    let mut options = Options::default();
    for (name, value) in given {
        let text = || value.as_str().unwrap().to_owned();
        match name.as_str() {
            "tolerance_s" => {
                options.tolerance = Some(Duration::from_secs(text().parse().unwrap()));
            }
            "dialect" => options.dialect = Some(text()),
            "public_url" => options.public_url = Some(text()),
            "hmac" => {
                options.hmac = Some(HmacOptions::deserialize(value).unwrap());
            }
            other => panic!("no option is called {other}"),
        }
    }
    options
}

impl Ready {
    fn request(&self) -> Request<'_> {
        Request {
            method: &self.method,
            target: &self.target,
            headers: &self.headers,
            body: &self.body,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.case.now_unix).unwrap()
    }

    fn run(&self) {
        let (name, expect) = (&self.name, &self.case.expect);
        let request = self.request();
        let refusal_fits = |refusal: Refusal| {
            let code = refusal.code();
            assert!(
                expect.reason.as_deref() == Some(code)
                    || expect.reason_any.iter().any(|other| other == code),
                "{name}: {code}, not {:?}",
                expect.reason
            );
        };
        let verified = match self.provider.verify(&request, &self.secrets, self.now()) {
            Err(refusal) => {
                assert!(!expect.verify, "{name}: {refusal:?}");
                refusal_fits(refusal);
                assert!(expect.events.as_ref().is_none_or(Vec::is_empty), "{name}");
                return;
            }
            Ok(verified) => verified,
        };
        assert_eq!(verified.refused_items.is_empty(), expect.verify, "{name}");
        if let Some((_, refusal)) = verified.refused_items.first() {
            refusal_fits(*refusal);
        }
        let mut items = self.provider.unwrap(&request, &verified);
        for item in &items {
            self.check_digests(item);
        }
        items.dedup_by(|next, item| next.key == item.key);
        if let Some(events) = &expect.events {
            assert_eq!(items.len(), events.len(), "{name}");
            for (item, event) in items.iter().zip(events) {
                self.check_event(item, event);
            }
        }
        if let Some(answer) = &expect.reply {
            let reply = self.provider.acknowledge().expect(name);
            assert_eq!(reply.status, answer.status, "{name}");
            assert_eq!(reply.body, answer.body.as_bytes(), "{name}");
        }
    }

    fn check_event(&self, item: &Item, event: &Event) {
        let (name, expect) = (&self.name, &self.case.expect);
        assert_eq!(item.provider_id, event.id, "{name}");
        if event.kind.is_some() {
            assert_eq!(item.event_type, event.kind, "{name}");
        }
        if event.entity.is_some() {
            assert_eq!(item.entity, event.entity, "{name}");
        }
        if event.account.is_some() {
            assert_eq!(item.account, event.account, "{name}");
        }
        if let Some(live) = event.livemode {
            let mode = if live { Mode::Live } else { Mode::Test };
            assert_eq!(item.mode, Some(mode), "{name}");
        }
        let made_here = event.key_parts.len() == 1
            && EventKey::RESERVED
                .iter()
                .any(|prefix| event.key_parts[0].starts_with(prefix));
        let parts: Vec<String> = event
            .key_parts
            .iter()
            .map(|part| {
                if made_here {
                    part.clone()
                } else {
                    part.replace('%', "%25").replace(':', "%3A")
                }
            })
            .collect();
        let key = item.key.as_str();
        assert!(key.contains(&parts.join(":")), "{name}: {key}");
        let unreadable = expect.verify && expect.reason.as_deref() == Some("malformed_body");
        match item.reading {
            Reading::Unreadable(reason) => assert!(unreadable, "{name}: {reason}"),
            Reading::Ignored(_) => assert!(expect.ignored, "{name}"),
            Reading::Event => assert!(!unreadable && !expect.ignored, "{name}"),
        }
    }

    fn check_digests(&self, item: &Item) {
        let bytes = &self.body[item.range.clone()];
        assert_eq!(item.raw_digest, Digest::of(bytes), "{}", self.name);
        let again = self.provider.comparable(item.digest_rule, bytes);
        assert_eq!(again, item.canonical_digest, "{}", self.name);
    }
}

#[test]
fn every_fixture_comes_out_as_expected() {
    let cases = cases();
    for ready in &cases {
        ready.run();
    }
    assert!(cases.len() >= 80, "{} fixtures were found", cases.len());
}

#[test]
fn f3_no_fixture_passes_without_its_signature_or_with_another_secret() {
    for ready in cases().iter().filter(|ready| ready.case.expect.verify) {
        let verify = |headers: &Headers, body: &[u8], secrets: &[Secret]| {
            let request = Request {
                headers,
                body,
                ..ready.request()
            };
            ready.provider.verify(&request, secrets, ready.now())
        };
        let others: Vec<Secret> = ready
            .secrets
            .iter()
            .map(|secret| Secret {
                key: secret.key.iter().rev().copied().collect(),
                ..secret.clone()
            })
            .collect();
        let name = &ready.name;
        let good = verify(&ready.headers, &ready.body, &ready.secrets);
        assert!(good.is_ok(), "{name}");
        let other = verify(&ready.headers, &ready.body, &others);
        assert_eq!(other, Err(Refusal::BadSignature), "{name}");
        let none = verify(&ready.headers, &ready.body, &[]);
        assert_eq!(none, Err(Refusal::BadSignature), "{name}");
        if ready.provider.stored_headers().is_empty() {
            continue;
        }
        let bare = verify(&Headers::default(), &ready.body, &ready.secrets);
        assert_eq!(bare, Err(Refusal::MissingSignature), "{name}");
        for at in 0..ready.body.len() {
            let mut changed = ready.body.clone();
            changed[at] ^= 1;
            let changed = verify(&ready.headers, &changed, &ready.secrets);
            assert_eq!(changed, Err(Refusal::BadSignature), "{name}");
        }
    }
}
