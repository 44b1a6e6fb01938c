//! A secret is checked at load as hard as a signature at the door, and changed without a restart.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use oncehook::provider::Options;

use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{Ran, TestApp, inbox, oncehook};

use super::calls::{self, Call};
use super::{start, start_with, stored};

/// Runs `check` and `serve` on a configuration that neither may accept.
async fn refused(toml: &str, env: &[(&str, &str)]) -> [Ran; 2] {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("oncehook.toml");
    // Nobody listens there: a `serve` that got as far would say so, with another exit code.
    let database = "[database]\nurl = \"postgresql://nobody@127.0.0.1:9/none\"\n";
    fs::write(&config, format!("{database}{toml}")).unwrap();
    fs::write(dir.path().join("empty"), "\n").unwrap();
    let ran = [
        oncehook(&config, &["check"], env).await,
        oncehook(&config, &["serve"], env).await,
    ];
    for ran in &ran {
        assert_eq!(ran.code, Some(2), "{toml}\n{ran:?}");
    }
    ran
}

fn source(provider: &str, value: &str) -> String {
    format!(
        "[[source]]\nname = \"till\"\nprovider = \"{provider}\"\n\
         secrets = [{{ label = \"of-may\", value = {value:?} }}]\n"
    )
}

fn names_source_and_label(ran: &Ran, case: &str) {
    let said = ran.said();
    assert!(
        said.contains("\"till\"") && said.contains("\"of-may\""),
        "{case}: {said}"
    );
}

#[tokio::test]
async fn f12_no_source_starts_without_a_real_secret() {
    for (value, shown) in [
        ("env:TILL_UNSET", Some("TILL_UNSET")),
        ("env:TILL_EMPTY", None),
        ("env:TILL_BLANK", None),
        ("file:empty", None),
        ("file:absent", Some("absent")),
        ("", None),
        ("  ", None),
        ("kQ9x2", None),
        ("whsec_kQ9x2Lm", None),
        ("zzzzzzzzzzzzzzzzzzzzzz", None),
        ("changeme-changeme-changeme", None),
    ] {
        let env = [("TILL_EMPTY", ""), ("TILL_BLANK", " \t ")];
        for ran in refused(&source("stripe", value), &env).await {
            names_source_and_label(&ran, value);
            match shown {
                Some(name) => assert!(ran.said().contains(name), "{value}"),
                None if value.trim().is_empty() || value.contains(':') => {}
                None => assert!(!ran.said().contains(value), "{value}: {}", ran.said()),
            }
        }
    }
    // Nor without any, and there is no way to switch the check off.
    for lines in [
        "",
        "secrets = []",
        "verify = false",
        "skip_verification = true",
    ] {
        let toml = format!("[[source]]\nname = \"till\"\nprovider = \"stripe\"\n{lines}\n");
        for ran in refused(&toml, &[]).await {
            assert!(ran.said().contains("\"till\""), "{lines}: {}", ran.said());
            assert!(ran.said().contains("secrets"), "{lines}: {}", ran.said());
        }
    }
}

#[tokio::test]
async fn f12_what_is_signed_with_the_empty_key_is_never_acknowledged() {
    let inbox = start().await;
    let body: &[u8] = br#"{"id":"evt_1","type":"t","livemode":true}"#;
    let now = signer::now_s();
    let [id, time, signature] = signer::standard_webhooks("whsec_", "evt_1", now, body);
    let shop = signer::hmac_sha256(b"", &[now.to_string().as_bytes(), b".", body]);
    for call in [
        calls::stripe_with("", body),
        Call::new("standard", body)
            .header(id.0, id.1)
            .header(time.0, time.1)
            .header(signature.0, signature.1),
        calls::github("evt_1", "push", body)
            .header("X-Hub-Signature-256", signer::github("", body)),
        calls::shop(body).header("X-Shop-Signature", format!("v1={}", hex::encode(shop))),
    ] {
        assert_eq!(call.to(inbox.public).await.status, 401, "{}", call.path);
    }
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
}

#[tokio::test]
async fn f13_secrets_that_do_not_decode_or_decode_to_too_little_are_refused() {
    for (provider, value) in [
        ("standard-webhooks", "whsec_"),
        ("standard-webhooks", "whsec_!!!!"),
        ("standard-webhooks", "whsec_QQ=="),
        (
            "standard-webhooks",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!",
        ),
        (
            "standard-webhooks",
            "whsec_MfKQ9r8GKYqrTwjUPD8I LPZIo2LaLaSw",
        ),
        (
            "standard-webhooks",
            "whsec_MfKQ9r8GKYqrTw-_PD8ILPZIo2LaLaSw",
        ),
        ("adyen", "44782DEF547AAA06"),
        (
            "adyen",
            "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA05",
        ),
        (
            "adyen",
            "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA0ZZ",
        ),
    ] {
        for ran in refused(&source(provider, value), &[]).await {
            names_source_and_label(&ran, value);
            assert!(!ran.said().contains(value) || value == "whsec_", "{value}");
        }
    }
}

#[tokio::test]
async fn f14_a_signature_is_no_secret_and_the_preset_decides_how_one_is_read() {
    let pasted = "v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    for provider in ["stripe", "standard-webhooks", "github"] {
        for ran in refused(&source(provider, pasted), &[]).await {
            names_source_and_label(&ran, provider);
            assert!(ran.said().contains("signature"), "{}", ran.said());
            assert!(!ran.said().contains("MfKQ9r8"), "{}", ran.said());
        }
    }
    // The same text as the secret of both: each reads it in its own way and in no other.
    let text = calls::STANDARD_SECRET;
    let plain = Options::default();
    let inbox = start_with(vec![
        inbox::source("stripe", "stripe", text, &plain),
        inbox::source("standard", "standard-webhooks", text, &plain),
    ])
    .await;
    let body: &[u8] = br#"{"id":"evt_1","type":"t","livemode":true}"#;
    let decoded = STANDARD.decode(&text[6..]).unwrap();
    let time = signer::now_s().to_string();
    for (key, stripe, standard) in [
        (text.as_bytes(), 200, 401),
        (decoded.as_slice(), 401, 200),
        (&text.as_bytes()[6..], 401, 401),
    ] {
        let mac = signer::hmac_sha256(key, &[time.as_bytes(), b".", body]);
        let call = Call::new("stripe", body).header(
            "Stripe-Signature",
            format!("t={time},v1={}", hex::encode(mac)),
        );
        assert_eq!(call.to(inbox.public).await.status, stripe);
        let mac = signer::hmac_sha256(key, &[b"evt_1.", time.as_bytes(), b".", body]);
        let call = Call::new("standard", body)
            .header("webhook-id", "evt_1")
            .header("webhook-timestamp", &time)
            .header("webhook-signature", format!("v1,{}", STANDARD.encode(mac)));
        assert_eq!(call.to(inbox.public).await.status, standard);
    }
}

#[tokio::test]
async fn f15_each_living_secret_verifies_and_its_label_is_kept_and_not_its_value() {
    let labelled = [
        ("ended", "whsec_endedKey00aB12cD34eF56gH78iJ90", Some(-60)),
        (
            "ending",
            "whsec_endingKey0aB12cD34eF56gH78iJ90",
            Some(3_600),
        ),
        ("new", STRIPE_SECRET, None),
    ];
    let mut source = inbox::stripe_source();
    source.secrets = labelled
        .iter()
        .map(|(label, text, until)| {
            let one = inbox::source("x", "stripe", text, &Options::default());
            let mut secret = one.secrets.into_iter().next().unwrap();
            (*label).clone_into(&mut secret.label);
            secret.until =
                until.map(|seconds| Timestamp::now() + SignedDuration::from_secs(seconds));
            secret
        })
        .collect();
    let inbox = start_with(vec![source]).await;
    for (label, text, until) in labelled {
        let body = inbox::event(&format!("evt_{label}"), "t", serde_json::json!({})).to_string();
        let answer = calls::stripe_with(text, body).to(inbox.public).await;
        let expected = if until.is_some_and(|at| at < 0) {
            401
        } else {
            200
        };
        assert_eq!(answer.status, expected, "{label}");
    }
    let labels: Vec<String> = inbox
        .db
        .all("SELECT secret_label FROM oncehook.request ORDER BY 1")
        .await;
    assert_eq!(labels, ["ending", "new"]);
    // A further copy under another secret is noted with that one's label.
    let body = inbox::event("evt_new", "t", serde_json::json!({})).to_string();
    let answer = calls::stripe_with(labelled[1].1, body)
        .to(inbox.public)
        .await;
    assert!(answer.replayed());
    let label: String = inbox
        .db
        .one("SELECT secret_label FROM oncehook.receipt")
        .await;
    assert_eq!(label, "ending");
}

#[tokio::test]
async fn f16_a_secret_is_added_under_load_and_a_bad_configuration_changes_nothing() {
    let mut app = TestApp::builder()
        .stripe("stripe")
        .setup(super::LEDGER)
        .sql_handler("ledger", "app.book", "")
        .start()
        .await;
    let (address, old) = (app.public, app.toml().to_owned());
    let added = "whsec_addedKey000aB12cD34eF56gH78iJ90";
    let with_added = old.replace(
        "secrets = [",
        &format!("secrets = [{{ label = \"b\", value = {added:?} }}, "),
    );

    let (stop, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            tokio::spawn(async move {
                let mut statuses = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("evt_{sender}_{}", statuses.len());
                    statuses.push(calls::stripe_event(&id).to(address).await.status);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                statuses
            })
        })
        .collect();
    let more_are_sent = async || {
        let before = sent.load(Ordering::Relaxed);
        crate::support::until("more are sent", async || {
            sent.load(Ordering::Relaxed) >= before + 40
        })
        .await;
    };
    more_are_sent().await;
    app.reconfigure(&with_added);
    app.sighup();
    app.until_logged("configuration reloaded").await;
    more_are_sent().await;
    let body = inbox::event("evt_added", "t", serde_json::json!({})).to_string();
    let by_added = calls::stripe_with(added, body);
    assert_eq!(by_added.to(address).await.status, 200);

    let short = with_added.replace(added, "whsec_short");
    app.reconfigure(&short);
    app.sighup();
    app.until_logged("configuration not reloaded, the old one stays")
        .await;
    more_are_sent().await;
    assert!(by_added.to(address).await.replayed(), "both still verify");
    stop.store(true, Ordering::Relaxed);
    let mut all = 0;
    for sender in senders {
        let statuses = sender.await.unwrap();
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        all += statuses.len();
    }
    let said = app.output();
    for secret in [added, "whsec_short", STRIPE_SECRET] {
        assert!(!said.contains(secret));
    }
    super::until_booked(&app.db, i64::try_from(all).unwrap() + 1).await;
}

#[tokio::test]
async fn f16_no_event_is_given_up_by_a_handler_while_the_configuration_changes() {
    let inbox = start().await;
    let sending = tokio::spawn(super::at_once(
        inbox.public,
        (0..200)
            .map(|number| calls::stripe_event(&format!("evt_{number}")))
            .collect(),
    ));
    let ledger = || vec![inbox::sql("ledger", "app.book")];
    while !sending.is_finished() {
        inbox
            .engine
            .reload(calls::sources(), ledger())
            .await
            .unwrap();
    }
    for _ in 0..20 {
        inbox
            .engine
            .reload(calls::sources(), ledger())
            .await
            .unwrap();
    }
    assert!(
        sending
            .await
            .unwrap()
            .iter()
            .all(|answer| answer.status == 200)
    );
    super::until("every event has its outcome", async || {
        inbox.db.count("outcome").await == 200
    })
    .await;
    let dead = inbox.db.count("outcome WHERE result <> 'succeeded'").await;
    assert_eq!(dead, 0);
    super::until_booked(&inbox.db, 200).await;
}
