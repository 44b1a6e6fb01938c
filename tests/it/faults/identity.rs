//! One key, one event; whatever else two copies differ in is a recorded conflict or irrelevant.

use std::fs;
use std::sync::Arc;

use oncehook::domain::Mode;
use oncehook::engine::{Engine, EngineConfig};
use oncehook::provider::{EventId, OnConflict};
use oncehook::store::{Settings, Store};
use serde_json::{Value, json};

use crate::support::inbox::{self, Inbox};
use crate::support::{TestApp, TestDb, oncehook};

use super::calls::{self, Call};
use super::{at_once, start, start_with, state, stored, until_booked};

#[tokio::test]
async fn f17_fifty_at_once_over_two_nodes_are_one_event_and_one_effect() {
    let mut app = TestApp::builder()
        .stripe("stripe")
        .setup(super::LEDGER)
        .sql_handler("ledger", "app.book", "")
        .start()
        .await;
    let other = app.another_node().await;
    let call = calls::stripe_event("evt_1");
    let mut sending = Vec::new();
    for number in 0..50 {
        let address = if number % 2 == 0 {
            app.public
        } else {
            other.public
        };
        let call = call.clone();
        sending.push(tokio::spawn(async move { call.to(address).await }));
    }
    let mut bodies = Vec::new();
    let mut first = 0;
    for one in sending {
        let answer = one.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        first += usize::from(!answer.replayed());
        bodies.push(answer.body);
    }
    bodies.dedup();
    assert_eq!((bodies.len(), first), (1, 1));
    until_booked(&app.db, 1).await;
    assert_eq!(stored(&app.db).await, [1, 1, 1]);
    assert_eq!(app.db.count("outcome").await, 1);
    let copies: i64 = app
        .db
        .one("SELECT sum(count)::bigint FROM oncehook.receipt")
        .await;
    assert_eq!(copies, 49);
    for output in [app.output(), other.output()] {
        for trace in ["23505", "unique", "duplicate key", "\"ERROR\""] {
            assert!(!output.contains(trace), "{trace}: {output}");
        }
    }
}

fn with_mode(id: &str, mode: Option<Value>) -> Call {
    let mut event = inbox::event(id, "charge.succeeded", json!({"id": "ch_1"}));
    match mode {
        Some(mode) => event["livemode"] = mode,
        None => drop(event.as_object_mut().unwrap().remove("livemode")),
    }
    calls::stripe(event.to_string())
}

#[tokio::test]
async fn f18_a_test_event_on_a_live_source_is_kept_and_not_run_and_bars_nothing() {
    let mut source = inbox::stripe_source();
    source.accept_modes = Some(vec![Mode::Live]);
    let inbox = start_with(vec![source]).await;
    for mode in [
        Some(json!(false)),
        None,
        Some(json!(null)),
        Some(json!("true")),
        Some(json!(1)),
    ] {
        let answer = with_mode("evt_1", mode.clone()).to(inbox.public).await;
        assert_eq!(answer.status, 200, "{mode:?}");
    }
    let (test, unknown) = ("evt_1:mode=test", "evt_1:mode=unknown");
    for key in [test, unknown] {
        assert_eq!(state(&inbox.db, key).await.as_deref(), Some("ignored"));
    }
    assert_eq!(inbox.db.count("delivery").await, 0);
    let live = with_mode("evt_1", Some(json!(true))).to(inbox.public).await;
    assert!(live.status == 200 && !live.replayed());
    until_booked(&inbox.db, 1).await;
    assert_eq!(
        inbox.db.all::<String>("SELECT key FROM app.ledger").await,
        ["evt_1"]
    );
}

#[tokio::test]
async fn f18_a_mode_that_cannot_be_read_is_never_taken_for_live() {
    // A source that accepts every mode that can be read.
    let inbox = start().await;
    for mode in [
        Some(json!(true)),
        Some(json!(false)),
        None,
        Some(json!("live")),
    ] {
        assert_eq!(with_mode("evt_1", mode).to(inbox.public).await.status, 200);
    }
    until_booked(&inbox.db, 2).await;
    let unknown = state(&inbox.db, "evt_1:mode=unknown").await;
    assert_eq!(unknown.as_deref(), Some("ignored"));
    // Adyen's word for it, outside the signature.
    for live in ["\"true\"", "\"yes\"", "7"] {
        let call = calls::adyen(&[calls::adyen_item(&format!("psp_{}", live.len()), "o", 1)]);
        let text = String::from_utf8(call.body.clone()).unwrap();
        let call = call.body(text.replace("\"live\":\"true\"", &format!("\"live\":{live}")));
        assert_eq!(call.to(inbox.public).await.status, 200, "{live}");
    }
    until_booked(&inbox.db, 3).await;
}

#[tokio::test]
async fn f19_no_account_is_a_value_that_collides_with_itself() {
    let inbox = start().await;
    let mut replayed = Vec::new();
    for account in [
        Some(json!("acct_a")),
        Some(json!("acct_b")),
        None,
        None,
        Some(Value::Null),
        Some(json!("")),
        Some(json!("acct_a")),
    ] {
        let mut event = inbox::event("evt_1", "charge.succeeded", json!({"id": "ch_1"}));
        if let Some(account) = &account {
            event["account"] = account.clone();
        }
        let answer = calls::stripe(event.to_string()).to(inbox.public).await;
        assert_eq!(answer.status, 200, "{account:?}");
        replayed.push(answer.replayed());
    }
    assert_eq!(replayed, [false, false, false, true, true, true, true]);
    until_booked(&inbox.db, 3).await;
    assert_eq!(inbox.db.count("event").await, 3);
}

#[tokio::test]
async fn f20_keys_of_several_parts_are_escaped_and_a_rule_that_finds_nothing_is_unreadable() {
    let mut scheme = calls::shop_scheme();
    scheme.event_id = Some(EventId::Several(vec!["json:/a".into(), "json:/b".into()]));
    let inbox = start_with(vec![inbox::source(
        "shop",
        "hmac",
        calls::SHOP_SECRET,
        &calls::hmac(scheme),
    )])
    .await;
    for (a, b, key) in [
        ("a:b", "c", "a%3Ab:c"),
        ("a", "b:c", "a:b%3Ac"),
        ("a", "b", "a:b"),
        ("a%3Ab", "c", "a%253Ab:c"),
        ("sha256", "x", "sha256:x"),
    ] {
        let answer = calls::shop(json!({"a": a, "b": b}).to_string())
            .to(inbox.public)
            .await;
        assert!(answer.status == 200 && !answer.replayed(), "{a} {b}");
        assert_eq!(state(&inbox.db, key).await, None);
    }
    for body in [
        json!({"a": "x"}),
        json!({"b": "x"}),
        json!({"a": "", "b": ""}),
        json!({}),
    ] {
        let answer = calls::shop(body.to_string()).to(inbox.public).await;
        assert_eq!(answer.status, 200, "{body}");
    }
    assert_eq!(inbox.db.count("event WHERE state = 'unreadable'").await, 4);
    until_booked(&inbox.db, 5).await;
}

#[tokio::test]
async fn f20_without_a_rule_the_content_is_the_key_and_check_says_how_weak_that_is() {
    let mut scheme = calls::shop_scheme();
    scheme.event_id = None;
    let options = calls::hmac(scheme);
    let inbox = start_with(vec![inbox::source(
        "shop",
        "hmac",
        calls::SHOP_SECRET,
        &options,
    )])
    .await;
    for (body, replayed) in [
        (r#"{"a":1,"b":2}"#, false),
        (r#"{ "b":2, "a":1 }"#, true),
        (r#"{"a":1,"b":3}"#, false),
    ] {
        let answer = calls::shop(body).to(inbox.public).await;
        assert_eq!(
            (answer.status, answer.replayed()),
            (200, replayed),
            "{body}"
        );
    }
    let keys = inbox.db.count("event_key WHERE key LIKE 'content:%'").await;
    assert_eq!(keys, 2);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    let toml = calls::SHOP_TOML.replace("event_id = \"json:/id\"\n", "");
    fs::write(
        &config,
        format!(
            "[database]\nurl = \"postgresql://x@127.0.0.1/x\"\n[[source]]\nname = \"shop\"\nprovider = \"hmac\"\n\
             secrets = [{{ label = \"a\", value = {:?} }}]\n{toml}",
            calls::SHOP_SECRET
        ),
    )
    .unwrap();
    let ran = oncehook(&config, &["check"], &[]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.said().contains("event_id"), "{ran:?}");
}

/// Moves everything stored so far to yesterday, as if midnight had passed since.
async fn midnight_passes(db: &TestDb) {
    db.execute(
        "CREATE TEMP TABLE moved AS SELECT e.id AS old, oncehook.uuid7(now() - interval '1 day') AS new,
                e.request_id AS old_request, oncehook.uuid7(now() - interval '1 day') AS new_request FROM oncehook.event e;
         UPDATE oncehook.event_key k SET event_id = new, first_seen = first_seen - interval '1 day' FROM moved WHERE event_id = old;
         UPDATE oncehook.request r SET id = new_request, received_at = received_at - interval '1 day' FROM moved WHERE id = old_request;
         UPDATE oncehook.outcome o SET event_id = new FROM moved WHERE event_id = old;
         UPDATE oncehook.event e SET id = new, request_id = new_request FROM moved WHERE id = old;
         DROP TABLE moved",
    )
    .await;
}

#[tokio::test]
async fn f21_the_same_key_on_both_sides_of_midnight_is_one_event() {
    let inbox = start().await;
    let call = calls::stripe_event("evt_1");
    assert_eq!(call.to(inbox.public).await.status, 200);
    until_booked(&inbox.db, 1).await;
    midnight_passes(&inbox.db).await;
    let partition: String = inbox
        .db
        .one("SELECT tableoid::regclass::text FROM oncehook.event")
        .await;
    let yesterday: String = inbox
        .db
        .one(
            "SELECT 'oncehook.event_' || to_char((now() AT TIME ZONE 'UTC')::date - 1, 'YYYYMMDD')",
        )
        .await;
    assert_eq!(partition, yesterday);

    let first: uuid::Uuid = inbox
        .db
        .one("SELECT event_id FROM oncehook.event_key")
        .await;
    for answer in at_once(inbox.public, vec![call; 10]).await {
        assert!(answer.status == 200 && answer.replayed());
        assert_eq!(answer.body, format!(r#"{{"event_id":"{first}"}}"#));
    }
    assert_eq!(stored(&inbox.db).await, [1, 1, 1]);
    until_booked(&inbox.db, 1).await;
    let timeline = inbox.timeline("evt_1").await;
    assert_eq!(timeline.received_count, 11, "shown across the days");
    assert_eq!(timeline.outcomes.len(), 1);
}

#[tokio::test]
async fn f22_ids_are_measured_in_bytes_and_never_cut() {
    let inbox = start().await;
    for (id, expected) in [
        ("i".to_owned(), None),
        ("i".repeat(255), None),
        ("é".repeat(512), None),
        ("i".repeat(1_024), None),
        ("i".repeat(1_025), Some("unreadable")),
        ("é".repeat(513), Some("unreadable")),
        ("i".repeat(5_000), Some("unreadable")),
        (":".repeat(1_024), Some("unreadable")),
        ("i".repeat(200_000), Some("unreadable")),
    ] {
        let call = calls::stripe_event(&id);
        for replayed in [false, true] {
            let answer = call.to(inbox.public).await;
            assert_eq!((answer.status, answer.replayed()), (200, replayed));
            assert!(answer.body.len() < 100, "{}", answer.body);
        }
        let stored: Vec<Option<String>> = inbox
            .db
            .all("SELECT state FROM oncehook.event ORDER BY id DESC LIMIT 1")
            .await;
        assert_eq!(stored, [expected.map(str::to_owned)], "{} bytes", id.len());
    }
    until_booked(&inbox.db, 4).await;
    assert_eq!(inbox.db.count("event_key").await, 9);
}

#[tokio::test]
async fn f22_a_changed_recipe_is_refused_at_start_and_at_reload() {
    let mut app = TestApp::builder()
        .source("shop", "hmac", calls::SHOP_SECRET, calls::SHOP_TOML)
        .start()
        .await;
    let call = calls::shop(r#"{"id":"evt_1","number":"7"}"#);
    assert_eq!(call.to(app.public).await.status, 200);
    let changed = app.toml().replace("json:/id", "json:/number");
    app.reconfigure(&changed);
    app.sighup();
    app.until_logged("configuration not reloaded, the old one stays")
        .await;
    assert!(call.to(app.public).await.replayed(), "the old one serves");
    // The same file at a start of its own.
    let ran = oncehook(&app.config(), &["serve"], &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for word in ["shop", "json:/id", "json:/number"] {
        assert!(ran.said().contains(word), "{word}: {}", ran.said());
    }
    let recipes: Vec<String> = app.db.all("SELECT recipe FROM oncehook.source").await;
    assert_eq!(recipes, ["hmac: json:/id"]);
}

#[tokio::test]
async fn f23_forged_copies_never_bar_the_real_one() {
    let inbox = start().await;
    let real = calls::stripe_event("evt_1");
    let forged = (0..100)
        .map(|number| {
            let wrong = "whsec_guessedKey0aB12cD34eF56gH78iJ90";
            match number % 3 {
                0 => calls::stripe_with(wrong, real.body.as_slice()),
                1 => real.clone().body([real.body.as_slice(), b" "].concat()),
                _ => Call::new("stripe", real.body.as_slice()),
            }
        })
        .collect();
    for answer in at_once(inbox.public, forged).await {
        assert_eq!(answer.status, 401);
    }
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
    let answer = real.to(inbox.public).await;
    assert!(answer.status == 200 && !answer.replayed());
    until_booked(&inbox.db, 1).await;
}

#[tokio::test]
async fn f24_a_resend_of_a_finished_event_is_seen_and_does_nothing() {
    let inbox = start().await;
    let event = inbox::event("evt_1", "charge.succeeded", json!({"id": "ch_1"}));
    let first = calls::stripe(event.to_string()).to(inbox.public).await;
    until_booked(&inbox.db, 1).await;
    let before = inbox.timeline("evt_1").await;
    assert_eq!(before.received_count, 1);
    for _ in 0..3 {
        // Signed anew, as the button on the sender's screen does.
        let again = calls::stripe(event.to_string()).to(inbox.public).await;
        assert_eq!((again.status, &again.body), (200, &first.body));
        assert_eq!(again.header("Content-Type"), first.header("Content-Type"));
        assert!(again.replayed() && !first.replayed());
    }
    let after = inbox.timeline("evt_1").await;
    assert_eq!(after.received_count, 4);
    let last = after
        .receipts
        .iter()
        .map(|receipt| receipt.received_at)
        .max();
    assert!(last.unwrap() > before.event.received_at);
    assert_eq!(after.event.received_at, before.event.received_at);
    assert_eq!(after.outcomes.len(), 1);
    until_booked(&inbox.db, 1).await;
    assert_eq!(stored(&inbox.db).await, [1, 1, 1]);
}

fn charge(amount: i64, extra: &Value) -> Call {
    let mut event = inbox::event("evt_1", "charge.succeeded", json!({"amount": amount}));
    for (name, value) in extra.as_object().unwrap() {
        event[name] = value.clone();
    }
    calls::stripe(event.to_string())
}

#[tokio::test]
async fn f25_other_content_is_recorded_once_per_digest_and_never_run() {
    let mut rejecting = inbox::stripe_source();
    "rejecting".clone_into(&mut rejecting.name);
    rejecting.on_conflict = OnConflict::Reject;
    let inbox = start_with(vec![inbox::stripe_source(), rejecting]).await;
    for (source, on_conflict) in [("stripe", 200), ("rejecting", 409)] {
        let path = format!("/webhooks/{source}");
        let none = json!({});
        let first = charge(100, &none).at(&path).to(inbox.public).await;
        assert_eq!(first.status, 200);
        let mut kept = Vec::new();
        for call in [charge(999, &none), charge(999, &none), charge(998, &none)] {
            let call = call.at(&path);
            let answer = call.to(inbox.public).await;
            assert_eq!(answer.status, on_conflict, "{source}");
            if on_conflict == 200 {
                assert_eq!(answer.body, first.body);
            } else {
                assert!(!answer.body.contains("999") && !answer.body.contains("evt_1"));
            }
            kept.push(call.body);
        }
        kept.dedup();
        let rows = inbox
            .db
            .rows(
                "SELECT body FROM oncehook.conflict c JOIN oncehook.source s ON s.id = c.source_id WHERE s.name = $1 ORDER BY seen_at",
                &[&source],
            )
            .await;
        let bodies: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(bodies, kept, "each later content once, byte for byte");
        // Members the sender itself moves, order and spacing are no conflict.
        for call in [
            charge(
                100,
                &json!({"pending_webhooks": 3, "api_version": "2026-11-01"}),
            ),
            calls::stripe(
                "{ \"type\":\"charge.succeeded\", \"livemode\":true,\"created\":1764655200,\n\
                 \"object\":\"event\",\"data\":{\"object\":{\"amount\":100}},\"id\":\"evt_1\"}",
            ),
        ] {
            let answer = call.at(&path).to(inbox.public).await;
            assert_eq!(
                (answer.status, &answer.body),
                (200, &first.body),
                "{source}"
            );
            assert!(answer.replayed());
        }
        // The first copy stays the good one.
        assert!(
            charge(100, &none)
                .at(&path)
                .to(inbox.public)
                .await
                .replayed()
        );
    }
    assert_eq!(inbox.db.count("conflict").await, 4);
    until_booked(&inbox.db, 2).await;
    let timeline = inbox.timeline("evt_1").await;
    assert_eq!(timeline.conflicts.len(), 2);
    assert!(
        timeline
            .conflicts
            .iter()
            .all(|c| c.first_digest == timeline.raw_digest)
    );
}

#[tokio::test]
async fn f25_a_copy_is_judged_by_the_rule_stored_with_the_first() {
    let inbox = start().await;
    let none = json!({});
    assert_eq!(charge(100, &none).to(inbox.public).await.status, 200);
    let moved = charge(100, &json!({"pending_webhooks": 3}));
    // Stored when only raw bytes were compared: the newer rule does not reach back.
    inbox
        .db
        .execute("UPDATE oncehook.event_key SET digest_rule = 0, canonical_digest = NULL")
        .await;
    assert!(charge(100, &none).to(inbox.public).await.replayed());
    assert_eq!(inbox.db.count("conflict").await, 0);
    assert_eq!(moved.to(inbox.public).await.status, 200);
    assert_eq!(inbox.db.count("conflict").await, 1);
    // Stored under a rule that this version does not know: equal bytes are still equal.
    inbox
        .db
        .execute("UPDATE oncehook.event_key SET digest_rule = 99, canonical_digest = raw_digest")
        .await;
    assert!(charge(100, &none).to(inbox.public).await.replayed());
    assert_eq!(inbox.db.count("conflict").await, 1);
    assert_eq!(charge(101, &none).to(inbox.public).await.status, 200);
    assert_eq!(inbox.db.count("conflict").await, 2);
    until_booked(&inbox.db, 1).await;
}

#[tokio::test]
async fn f25_a_duplicate_after_its_payload_was_dropped_gets_the_identical_answer() {
    let inbox = start().await;
    let (call, batch) = (
        calls::stripe_event("evt_1"),
        calls::adyen(&[
            calls::adyen_item("psp_1", "o", 1),
            calls::adyen_item("psp_2", "o", 2),
        ]),
    );
    let first = [call.to(inbox.public).await, batch.to(inbox.public).await];
    until_booked(&inbox.db, 3).await;
    let day: String = inbox
        .db
        .one("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        .await;
    inbox
        .db
        .execute(&format!(
            "DROP TABLE oncehook.request_{day}, oncehook.event_{day}"
        ))
        .await;
    let again = [call.to(inbox.public).await, batch.to(inbox.public).await];
    for (again, first) in again.iter().zip(&first) {
        assert_eq!((again.status, &again.body), (200, &first.body));
        assert!(again.replayed());
    }
    assert_eq!(charge(7, &json!({})).to(inbox.public).await.status, 200);
    assert_eq!(
        inbox.db.count("conflict").await,
        1,
        "conflicts are still seen"
    );
    // The next event makes the partition it needs.
    assert_eq!(
        calls::stripe_event("evt_2").to(inbox.public).await.status,
        200
    );
    until_booked(&inbox.db, 4).await;
}

#[tokio::test]
async fn f25_each_conflict_raises_its_counter_and_one_line() {
    let app = TestApp::builder().stripe("stripe").start().await;
    for amount in [100, 200, 300] {
        let answer = charge(amount, &json!({})).to(app.public).await;
        assert_eq!(answer.status, 200);
    }
    let (_, metrics) = app.get("/metrics").await;
    let counted = r#"oncehook_events_conflict_total{source="stripe"} 2"#;
    assert!(metrics.as_str().unwrap().contains(counted), "{metrics}");
    assert_eq!(app.output().matches("conflict: other content").count(), 2);
}

#[tokio::test]
async fn f17_a_second_engine_with_the_same_sources_starts_on_the_same_keys() {
    let inbox = start().await;
    let call = calls::stripe_event("evt_1");
    assert_eq!(call.to(inbox.public).await.status, 200);
    let second = Inbox::on(Arc::clone(&inbox.db), calls::sources(), Vec::new(), None).await;
    assert!(call.to(second.public).await.replayed());
    // One whose recipe differs does not.
    let mut scheme = calls::shop_scheme();
    scheme.event_id = Some(EventId::One("json:/other".into()));
    let store = Store::new(Settings::parse(&inbox.db.url).unwrap(), 1).unwrap();
    let config = EngineConfig {
        sources: vec![inbox::source(
            "shop",
            "hmac",
            calls::SHOP_SECRET,
            &calls::hmac(scheme),
        )],
        ..EngineConfig::default()
    };
    let error = Engine::start(store, config).await.unwrap_err().to_string();
    assert!(error.contains("\"shop\""), "{error}");
}
