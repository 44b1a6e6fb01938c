//! Bulk replays over the API.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{TestApp, oncehook, until};

use super::{dead_letters, open, runs, standing, until_booked, until_standing};

pub(super) async fn post(app: &TestApp, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, body) = post_with_location(app, path, body).await;
    (status, body)
}

async fn post_with_location(
    app: &TestApp,
    path: &str,
    body: &Value,
) -> (u16, Option<String>, Value) {
    let url = format!("http://{}{path}", app.api);
    let answer = app
        .http
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_string())
        .send()
        .await
        .unwrap();
    let location = answer
        .headers()
        .get("location")
        .map(|at| at.to_str().unwrap().to_owned());
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (
        status,
        location,
        serde_json::from_str(&text).unwrap_or(text.into()),
    )
}

/// Starts one and gives its number.
pub(super) async fn started(app: &TestApp, order: &Value) -> i64 {
    let (status, location, body) = post_with_location(app, "/v1/replays", order).await;
    assert_eq!(status, 202, "{body}");
    let bulk = body["bulk"].as_i64().unwrap();
    assert_eq!(location, Some(format!("/v1/replays/{bulk}")));
    bulk
}

fn order(more: &Value) -> Value {
    let mut order = json!({
        "dry_run": false, "reason": "the account is open again", "since": "2020-01-01T00:00:00Z", "every_handler": true,
    });
    for (name, value) in more.as_object().unwrap() {
        order[name] = value.clone();
    }
    order
}

#[tokio::test]
async fn it_is_counted_started_and_looked_at() {
    let app = dead_letters(4).await;
    open(&app).await;
    let state = async || {
        (
            app.db.count("bulk_replay").await,
            app.db.count("audit").await,
            app.db.count("delivery").await,
            app.db.count("outcome").await,
        )
    };
    let before = state().await;
    let narrow = json!({"dry_run": true, "every_handler": false, "handler": "ledger", "type": "charge.ref*"});
    let (status, counted) = post(&app, "/v1/replays", &order(&narrow)).await;
    assert_eq!(status, 200, "{counted}");
    assert_eq!(
        counted,
        json!({"runs": 2, "candidates": [{"source": "stripe", "handler": "ledger", "result": "dead", "runs": 2}]})
    );
    assert_eq!(state().await, before, "a dry run changes nothing");
    assert_eq!(app.get("/v1/replays").await, (StatusCode::OK, json!([])));

    let bulk = started(&app, &order(&json!({"source": "stripe"}))).await;
    until_standing(&app, bulk, "complete").await;
    until_booked(&app, 8).await;
    let (status, now) = app.get(&format!("/v1/replays/{bulk}")).await;
    assert_eq!(status, StatusCode::OK);
    for (member, value) in [
        ("bulk", json!(bulk)),
        ("state", json!("complete")),
        ("replayed", json!(8)),
        ("refused", json!(0)),
        ("source", json!("stripe")),
        ("handler", Value::Null),
        ("results", json!(["dead"])),
        ("rate", json!(100)),
        ("actor", json!("api:local")),
        ("reason", json!("the account is open again")),
    ] {
        assert_eq!(now[member], value, "{member}: {now}");
    }
    assert!(
        now["ended_at"].is_string() && now["reached"].is_string(),
        "{now}"
    );
    assert_eq!(now["history"][1]["what"], "complete", "{now}");
    let (_, list) = app.get("/v1/replays").await;
    let mut without = now;
    without.as_object_mut().unwrap().remove("history");
    assert_eq!((&list[0], list.as_array().unwrap().len()), (&without, 1));
    let shown = oncehook(&app.config(), &["show", "stripe", "evt_0"], &[]).await;
    assert!(
        shown.stdout.contains(&format!(
            "event.replay (bulk {bulk}): the account is open again"
        )),
        "{}",
        shown.stdout
    );
    assert_eq!(runs(&app).await, [(2, 8)]);
    app.db.verify().await;
}

#[tokio::test]
async fn it_is_stopped_continued_and_given_up() {
    let app = dead_letters(6).await;
    open(&app).await;
    let bulk = started(&app, &order(&json!({"rate": 1}))).await;
    until("it is at work", async || standing(&app, bulk).await.1 > 0).await;
    let path = format!("/v1/replays/{bulk}");
    let why = json!({"reason": "a look first"});
    let tell = async |verb: &str| post(&app, &format!("{path}/{verb}"), &why).await.0;
    assert_eq!(tell("stop").await, 200);
    assert_eq!(tell("stop").await, 409, "it is stopped");
    let (status, refused) = post(
        &app,
        "/v1/replays",
        &order(&json!({"handler": "ledger", "every_handler": false})),
    )
    .await;
    assert_eq!(status, 409, "{refused}");
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.contains("(stopped, ")
            && detail.contains(&format!("POST {path}/continue"))
            && detail.contains("\"anew\": true"),
        "{detail}"
    );
    let stopped = standing(&app, bulk).await;
    assert_eq!(tell("continue").await, 200);
    until("it goes on", async || {
        standing(&app, bulk).await.1 > stopped.1
    })
    .await;
    assert_eq!(tell("give-up").await, 200);
    assert_eq!(tell("continue").await, 409, "it is given up");
    assert_eq!(standing(&app, bulk).await.0, "given_up");
    let actions: Vec<String> = app
        .db
        .all(&format!(
            "SELECT action || ' ' || actor || ': ' || reason FROM oncehook.audit WHERE subject = '{bulk}' ORDER BY id"
        ))
        .await;
    assert_eq!(
        actions,
        [
            "replay.bulk api:local: the account is open again",
            "replay.bulk.stop api:local: a look first",
            "replay.bulk.continue api:local: a look first",
            "replay.bulk.end api:local: a look first",
        ]
    );
    // What is left is another one's.
    let rest = started(&app, &order(&json!({"rate": 1000}))).await;
    until_standing(&app, rest, "complete").await;
    until_booked(&app, 12).await;
    assert_eq!(runs(&app).await, [(2, 12)]);
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_refused_is_told_with_it_and_not_met_again() {
    let app = dead_letters(3).await;
    open(&app).await;
    app.db
        .execute("UPDATE oncehook.request SET body = overlay(body PLACING '\\x7e'::bytea FROM 5) WHERE id = (SELECT request_id FROM oncehook.event WHERE key = 'evt_1')")
        .await;
    let bulk = started(&app, &order(&json!({"verify_bytes": true, "rate": 2}))).await;
    until_standing(&app, bulk, "complete").await;
    assert_eq!(standing(&app, bulk).await, ("complete".into(), 4, 2));
    let (_, now) = app.get(&format!("/v1/replays/{bulk}")).await;
    assert_eq!(
        now["refusals"][0],
        json!({"source": "stripe", "key": "evt_1", "handler": "ledger", "why": "its stored bytes are not those that were received"})
    );
    until_booked(&app, 4).await;
}

/// A number that no run can have is a refusal, not an error of the database: of one event, and in a bulk of each.
#[tokio::test]
async fn there_is_no_run_beyond_the_last_number() {
    let app = dead_letters(1).await;
    app.db
        .execute("UPDATE oncehook.outcome SET run = 32767")
        .await;
    let says = "run 32767 is the last there can be";
    let one = json!({"handler": "ledger", "reason": "once more"});
    let (status, refused) = post(&app, "/v1/events/stripe/evt_0/replay", &one).await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused["detail"].as_str().unwrap().contains(says),
        "{refused}"
    );
    let bulk = started(&app, &order(&json!({}))).await;
    until_standing(&app, bulk, "complete").await;
    assert_eq!(standing(&app, bulk).await, ("complete".into(), 0, 2));
    let (_, now) = app.get(&format!("/v1/replays/{bulk}")).await;
    let why = now["refusals"][0]["why"].as_str().unwrap();
    assert!(why.contains(says), "{now}");
    let (_, shown) = app.get("/v1/events/stripe/evt_0").await;
    let refused = shown["dead_letters"][0]["refused"].as_str().unwrap();
    assert!(refused.contains(says), "{shown}");
    assert_eq!(app.db.count("delivery").await, 0);
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused() {
    let app = dead_letters(0).await;
    for (wrong, expected) in [
        (json!({"dry_run": Value::Null}), 400),
        (json!({"handler": "ledger"}), 400),
        (json!({"results": ["succeeded"]}), 400),
        (json!({"rate": 0}), 400),
        (json!({"reason": " "}), 400),
        (json!({"rates": 1}), 400),
        (json!({"source": "strip"}), 404),
        (json!({"handler": "leger", "every_handler": false}), 404),
    ] {
        let (status, body) = post(&app, "/v1/replays", &order(&wrong)).await;
        assert_eq!(status, expected, "{wrong}: {body}");
    }
    let why = json!({"reason": "x"});
    for path in ["/v1/replays/7/stop", "/v1/replays/x/stop"] {
        assert_eq!(post(&app, path, &why).await.0, 404, "{path}");
    }
    for path in ["/v1/replays/7", "/v1/replays/x"] {
        assert_eq!(app.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(
        app.get("/v1/replays/7/stop").await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(post(&app, "/v1/replays/7", &why).await.0, 405);
    assert_eq!(app.db.count("bulk_replay").await, 0);
}
