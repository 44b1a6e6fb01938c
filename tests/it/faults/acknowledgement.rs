//! Nothing is promised before COMMIT, and nothing is forgotten after it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::inbox::{self, Inbox};
use crate::support::{Action, PgProxy, TestApp, TestDb, oncehook, until};

use super::calls::{self, Call};
use super::{LEDGER, start, stored, until_booked};

/// More than the tries of a batch and whatever else runs on the side.
const CUTS: usize = 20;

/// A node that only receives, behind a proxy.
async fn receiving() -> (Inbox, PgProxy) {
    let db = Arc::new(TestDb::new().await);
    let proxy = PgProxy::start(&db.url).await;
    let url = proxy.url(&db.name);
    let inbox = Inbox::through(&url, db, calls::sources(), Vec::new(), None).await;
    (inbox, proxy)
}

async fn not_acknowledged(inbox: &Inbox, call: &Call, step: &str) {
    let answer = call.to(inbox.public).await;
    assert_eq!(answer.status, 503, "{step}");
    assert!(answer.header("Retry-After").is_some(), "{step}");
    assert!(answer.body.contains("urn:oncehook:problem:"), "{step}");
}

#[tokio::test]
async fn f28_whatever_step_the_connection_fails_at_is_503_and_leaves_no_row() {
    let (inbox, proxy) = receiving().await;
    let call = calls::stripe_event("evt_1");
    for (step, needle) in [
        ("BEGIN", "begin isolation"),
        ("INSERT", "insert into oncehook.event_key"),
        ("COMMIT", "commit"),
    ] {
        for _ in 0..CUTS {
            proxy.arm(needle, Action::CutBefore);
        }
        not_acknowledged(&inbox, &call, step).await;
        assert_eq!(stored(&inbox.db).await, [0, 0, 0], "{step}");
        proxy.disarm();
    }
    proxy.refuse();
    not_acknowledged(&inbox, &call, "connect").await;
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
    proxy.admit();
    until("the service is back by itself", async || {
        call.to(inbox.public).await.status == 200
    })
    .await;
    assert_eq!(stored(&inbox.db).await, [1, 1, 1]);
    // A single cut is mended inside.
    proxy.arm("commit", Action::CutBefore);
    let answer = calls::stripe_event("evt_2").to(inbox.public).await;
    assert!(answer.status == 200 && !answer.replayed());
    assert_eq!(stored(&inbox.db).await, [2, 2, 2]);
}

#[tokio::test]
async fn f28_whatever_statement_postgresql_refuses_is_503_and_leaves_no_row() {
    let (inbox, _proxy) = receiving().await;
    let call = calls::stripe_event("evt_1");
    inbox
        .db
        .execute(
            "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$",
        )
        .await;
    for table in ["event_key", "request", "event"] {
        for when in [
            "TRIGGER no_room BEFORE INSERT ON oncehook.{} FOR EACH ROW",
            // Fails at COMMIT.
            "CONSTRAINT TRIGGER no_room AFTER INSERT ON oncehook.{} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
        ] {
            let trigger = when.replace("{}", table);
            let create = format!("CREATE {trigger} EXECUTE FUNCTION disk_full()");
            inbox.db.execute(&create).await;
            not_acknowledged(&inbox, &call, &trigger).await;
            assert_eq!(stored(&inbox.db).await, [0, 0, 0], "{trigger}");
            let drop = format!("DROP TRIGGER no_room ON oncehook.{table}");
            inbox.db.execute(&drop).await;
        }
    }
    let answer = call.to(inbox.public).await;
    assert!(answer.status == 200 && !answer.replayed());
}

#[tokio::test]
async fn f28_a_commit_that_comes_with_a_warning_is_not_acknowledged() {
    let (inbox, _proxy) = receiving().await;
    inbox
        .db
        .execute(
            "CREATE FUNCTION standby_gone() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER gone AFTER INSERT ON oncehook.event DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION standby_gone()",
        )
        .await;
    let call = calls::stripe_event("evt_1");
    not_acknowledged(&inbox, &call, "warning").await;
    // It is there all the same; the sender's retry finds it, in a commit of its own.
    let answer = call.to(inbox.public).await;
    assert!(answer.status == 200 && answer.replayed());
    assert_eq!(stored(&inbox.db).await, [1, 1, 1]);
}

#[tokio::test]
async fn f28_at_the_moment_of_every_200_another_connection_sees_the_row() {
    let inbox = start().await;
    let (address, db) = (inbox.public, &inbox.db);
    let mut looking = Vec::new();
    for number in 0..40 {
        let call = calls::stripe_event(&format!("evt_{number}"));
        let client = if number % 8 == 0 {
            Some(db.client().await)
        } else {
            None
        };
        looking.push(tokio::spawn(async move {
            let answer = call.to(address).await;
            assert_eq!(answer.status, 200);
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            let id: uuid::Uuid = body["event_id"].as_str().unwrap().parse().unwrap();
            let Some(client) = client else { return true };
            let sql = "SELECT count(*) FROM oncehook.event e JOIN oncehook.event_key k ON k.event_id = e.id
                         JOIN oncehook.request r ON r.id = e.request_id WHERE e.id = $1";
            client.query_one(sql, &[&id]).await.unwrap().get::<_, i64>(0) == 1
        }));
    }
    for one in looking {
        assert!(one.await.unwrap());
    }
    assert_eq!(stored(db).await, [40, 40, 40]);
}

#[tokio::test]
async fn f31_an_event_nobody_cares_about_is_kept_listed_and_can_be_run_later() {
    let mut app = TestApp::builder()
        .stripe("stripe")
        .source("shop", "hmac", calls::SHOP_SECRET, calls::SHOP_TOML)
        .setup(LEDGER)
        .sql_handler("ledger", "app.book", "events = [\"stripe:invoice.*\"]")
        .start()
        .await;
    let (known, unknown) = ("invoice.paid", "never.heard.of");
    for (id, event_type) in [("evt_1", known), ("evt_2", unknown), ("evt_3", unknown)] {
        let body = inbox::event(id, event_type, json!({})).to_string();
        let answer = calls::stripe(body).to(app.public).await;
        assert_eq!(answer.status, 200, "{event_type}");
    }
    let shop = calls::shop(r#"{"id":"evt_4"}"#).to(app.public).await;
    assert_eq!(
        shop.status, 200,
        "no type, and no handler for the source at all"
    );
    until_booked(&app.db, 1).await;
    let (_, listed) = app.get("/v1/events?state=unrecognized").await;
    assert_eq!(listed["events"].as_array().unwrap().len(), 3, "{listed}");
    // Once a handler takes them, those it missed are counted first and then run.
    let wider = app.toml().replace("stripe:invoice.*", "stripe:*");
    app.reconfigure(&wider);
    app.sighup();
    app.until_logged("configuration reloaded").await;
    let missing = [
        "replay",
        "--missing",
        "--handler",
        "ledger",
        "--since",
        "1h",
        "--reason",
        "new handler",
    ];
    let dry = oncehook(
        &app.config(),
        &[missing.as_slice(), &["--dry-run"]].concat(),
        &[],
    )
    .await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert!(
        dry.stdout.contains("evt_2") && dry.stdout.contains("evt_3"),
        "{dry:?}"
    );
    assert!(
        !dry.stdout.contains("evt_1") && !dry.stdout.contains("evt_4"),
        "{dry:?}"
    );
    assert_eq!(app.db.count("delivery").await, 0);
    for expected in [2, 0] {
        let ran = oncehook(&app.config(), &missing, &[]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stdout.lines().count(), expected, "{ran:?}");
        until_booked(&app.db, 3).await;
    }
}

#[tokio::test]
async fn f31_a_run_of_other_answers_shows_per_source_and_status() {
    let app = TestApp::builder().stripe("stripe").start().await;
    for _ in 0..3 {
        let forged = Call::new("stripe", "{}");
        assert_eq!(forged.to(app.public).await.status, 401);
    }
    assert_eq!(
        calls::stripe_event("evt_1").to(app.public).await.status,
        200
    );
    let (_, metrics) = app.get("/metrics").await;
    let metrics = metrics.as_str().unwrap();
    for counted in [
        r#"oncehook_webhook_responses_total{source="stripe",status="401"} 3"#,
        r#"oncehook_webhook_responses_total{source="stripe",status="200"} 1"#,
    ] {
        assert!(metrics.contains(counted), "{counted} in {metrics}");
    }
}

#[tokio::test]
async fn f52_a_commit_whose_answer_is_lost_is_read_back_and_nothing_doubles() {
    let (inbox, proxy) = receiving().await;
    proxy.arm("commit", Action::CutAfter);
    let call = calls::stripe_event("evt_1");
    let answer = call.to(inbox.public).await;
    proxy.until_fired(1).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(call.to(inbox.public).await.replayed());
    assert_eq!(stored(&inbox.db).await, [1, 1, 1]);

    // The same for the handler's transaction, on a node that only dispatches.
    inbox.db.execute(LEDGER).await;
    let url = proxy.url(&inbox.db.name);
    let ledger = || vec![inbox::sql("ledger", "app.book")];
    let db = Arc::clone(&inbox.db);
    let _working = Inbox::through(&url, db, Vec::new(), ledger(), Some(inbox::dispatch())).await;
    proxy.arm("commit", Action::CutAfter);
    inbox
        .engine
        .reload(calls::sources(), ledger())
        .await
        .unwrap();
    let direct = Inbox::on(Arc::clone(&inbox.db), calls::sources(), ledger(), None).await;
    assert_eq!(
        calls::stripe_event("evt_2").to(direct.public).await.status,
        200
    );
    until_booked(&inbox.db, 1).await;
    assert_eq!(inbox.db.count("outcome").await, 1);
}
