//! What a function answers there means what it means in our own database.

use serde_json::{Value, json};

use crate::crash::{POLL, QUICK, paid, put, timeline, verdicts};
use crate::support::inbox::event;
use crate::support::{Action, Node, Ran, TestApp, oncehook, until};

use super::{app, booked, books, proxied_books, repeats, until_booked_once};

/// Each type of event has another answer; the second try of all is good.
const ANSWERS: &str = "
CREATE TABLE app.effect (key text PRIMARY KEY, type text);
CREATE TABLE app.parent (id int PRIMARY KEY);
CREATE TABLE app.child (parent int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION app.answer(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.effect VALUES (event.key, event.type);
  IF event.attempt > 1 THEN RETURN jsonb_build_object('resource', 'second try of ' || event.key); END IF;
  CASE event.type
    WHEN 'null' THEN RETURN NULL;
    WHEN 'bare' THEN RETURN '[1, 2]';
    WHEN 'done' THEN RETURN '{\"result\": \"done\", \"resource\": \"booking 7\", \"note\": {\"deep\": []}}';
    WHEN 'failed' THEN RETURN '{\"result\": \"failed\", \"reason\": \"over the limit of 123456789012\"}';
    WHEN 'skip' THEN RETURN '{\"result\": \"skip\", \"reason\": \"superseded\"}';
    WHEN 'retry' THEN RETURN '{\"result\": \"retry\", \"reason\": \"bank is closed\", \"after_s\": 0.1}';
    WHEN 'not_yet' THEN RETURN '{\"result\": \"not_yet\", \"reason\": \"no order\", \"after_s\": 0.1}';
    WHEN 'odd' THEN RETURN '{\"result\": \"donee\"}';
    WHEN 'odder' THEN RETURN '{\"result\": null}';
    WHEN 'raise' THEN RAISE EXCEPTION 'the house is on fire';
    WHEN 'permanent' THEN RAISE EXCEPTION 'no account' USING ERRCODE = 'OH001';
    WHEN 'divide' THEN RETURN to_jsonb(1 / (event.attempt - 1));
    WHEN 'unique' THEN INSERT INTO app.effect VALUES (event.key, 'again');
    WHEN 'deferred' THEN INSERT INTO app.child VALUES (7);
    WHEN 'commit' THEN COMMIT;
    WHEN 'role' THEN EXECUTE 'SET ROLE pg_monitor'; RETURN '{\"resource\": \"as another\"}';
    WHEN 'fields' THEN RETURN jsonb_build_object('resource', concat_ws(' ', event.id, event.source, event.key, event.type,
      event.entity, event.occurred_at, event.received_at, md5(event.body), event.run, event.attempt));
    ELSE RETURN '{}';
  END CASE;
  RETURN NULL;
END $$;
";

const TYPES: [&str; 17] = [
    "null",
    "bare",
    "done",
    "failed",
    "skip",
    "retry",
    "not_yet",
    "odd",
    "odder",
    "raise",
    "permanent",
    "divide",
    "unique",
    "deferred",
    "commit",
    "role",
    "fields",
];

pub(super) async fn replay(node: &Node, key: &str, more: &[&str]) -> Ran {
    let mut args = vec![
        "replay",
        "stripe",
        key,
        "--handler",
        "ledger",
        "--reason",
        "x",
    ];
    args.extend(more);
    oncehook(&node.config(), &args, &[]).await
}

/// An error without its line in the loop that calls the functions of our own database.
fn plain(member: &Value) -> Value {
    let text = member.as_str();
    let cut = text.and_then(|text| text.split_once(": PL/pgSQL function oncehook."));
    cut.map_or_else(|| member.clone(), |(text, _)| text.into())
}

/// What is said of a handler's runs of an event, without what differs by nature.
async fn said(node: &Node, key: &str, handler: &str) -> Value {
    let all = timeline(node, key).await;
    let of = |list: &Value, members: &[&str]| -> Vec<Value> {
        let list = list.as_array().unwrap().iter();
        list.filter(|entry| entry["handler"] == handler)
            .map(|entry| members.iter().map(|m| plain(&entry[*m])).collect())
            .collect()
    };
    json!({
        "outcomes": of(&all["outcomes"], &["result", "reason", "resource", "attempts"]),
        "attempts": of(&all["attempts"], &["verdict", "error"]),
    })
}

#[tokio::test]
async fn every_answer_and_error_means_the_same_in_both_databases() {
    let other = books().await;
    other.execute(ANSWERS).await;
    let app = TestApp::builder()
        .stripe("stripe")
        .toml(POLL)
        .setup("CREATE SCHEMA app")
        .setup(ANSWERS)
        .sql_handler(
            "there",
            "app.answer",
            &format!("database = {:?}\n{QUICK}", other.url),
        )
        // One at a time, as it is there.
        .sql_handler("here", "app.answer", &format!("batch = 1\n{QUICK}"))
        .start()
        .await;
    for kind in TYPES {
        put(&app, &event(kind, kind, json!({"id": "ch_1"}))).await;
    }
    for kind in TYPES {
        for handler in ["there", "here"] {
            app.until_outcome("stripe", kind, handler).await;
        }
        let (there, here) = (
            said(&app, kind, "there").await,
            said(&app, kind, "here").await,
        );
        assert_eq!(there, here, "{kind}");
    }
    // The same effects, and a row of the ledger for each of them.
    let effects = "SELECT key || ' ' || type FROM app.effect ORDER BY 1";
    let there: Vec<String> = other.all(effects).await;
    assert_eq!(there, app.db.all::<String>(effects).await);
    let keys = "SELECT a.handler || ' ' || a.run FROM oncehook.applied a";
    assert_eq!(
        other.all::<String>(keys).await,
        vec!["there 1"; there.len()]
    );
    app.db.verify().await;
}

/// Nothing of a try stays that did not end there as it began.
#[tokio::test]
async fn a_function_that_tampers_with_its_row_of_the_ledger_is_a_dead_letter() {
    let other = books().await;
    other
        .execute(
            "CREATE FUNCTION app.tamper(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM app.book(event);
               IF event.type = 'deleted' THEN
                 DELETE FROM oncehook.applied WHERE effect_key = event.effect_key;
               ELSE
                 BEGIN
                   UPDATE oncehook.applied SET repeats = 7 WHERE effect_key = event.effect_key;
                 EXCEPTION WHEN division_by_zero THEN NULL;
                 END;
               END IF;
               RETURN '{}';
             END $$",
        )
        .await;
    let app = app("app.tamper", &other.url, QUICK).start().await;
    for kind in ["deleted", "changed"] {
        put(&app, &event(kind, kind, json!({"id": "ch_1"}))).await;
        let outcome = app.until_outcome("stripe", kind, "ledger").await;
        assert_eq!(outcome["result"], "dead", "{kind}: {outcome}");
        let reason = outcome["reason"].as_str().unwrap();
        assert!(reason.contains("its row of the ledger"), "{kind}: {reason}");
    }
    assert_eq!(other.count("app.ledger").await, 0);
    assert_eq!(other.count("applied").await, 0);
}

/// What it says of other effects is theirs: a changed answer or a row too many would be believed.
#[tokio::test]
async fn a_function_that_touches_the_row_of_another_effect_is_a_dead_letter() {
    let other = books().await;
    other
        .execute(
            "CREATE FUNCTION app.meddle(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               CASE event.type
                 WHEN 'plain' THEN NULL;
                 WHEN 'updated' THEN UPDATE oncehook.applied SET answer = '{}' WHERE effect_key <> event.effect_key;
                 WHEN 'renamed' THEN UPDATE oncehook.applied SET effect_key = 'x' WHERE effect_key = event.effect_key;
                 WHEN 'inserted' THEN INSERT INTO oncehook.applied VALUES ('ohk_of_tomorrow', 'ledger', 1);
                 WHEN 'deleted' THEN DELETE FROM oncehook.applied WHERE effect_key <> event.effect_key;
                 WHEN 'emptied' THEN TRUNCATE oncehook.applied;
               END CASE;
               RETURN app.book(event);
             END $$",
        )
        .await;
    let app = app("app.meddle", &other.url, QUICK).start().await;
    let ledger = "SELECT effect_key || ' ' || coalesce(answer::text, '') FROM oncehook.applied";
    put(&app, &event("plain", "plain", json!({"id": "ch_1"}))).await;
    until_booked_once(&app, &other, "plain").await;
    let before: Vec<String> = other.all(ledger).await;
    for kind in ["updated", "renamed", "inserted", "deleted", "emptied"] {
        put(&app, &event(kind, kind, json!({"id": "ch_1"}))).await;
        let outcome = app.until_outcome("stripe", kind, "ledger").await;
        assert_eq!(outcome["result"], "dead", "{kind}: {outcome}");
        let reason = outcome["reason"].as_str().unwrap();
        assert!(reason.contains("for another effect"), "{kind}: {reason}");
    }
    assert_eq!(booked(&other, "plain").await, 1);
    assert_eq!(other.count("app.ledger").await, 1);
    assert_eq!(other.all::<String>(ledger).await, before);
    // People may, in the session of a handler too.
    other
        .execute("UPDATE oncehook.applied SET repeats = repeats; DELETE FROM oncehook.applied")
        .await;
}

/// By that setting the table's triggers know whose row may be touched: who changes it could touch any.
#[tokio::test]
async fn a_function_that_changes_the_ledgers_setting_is_a_dead_letter() {
    let other = books().await;
    other
        .execute(
            "CREATE FUNCTION app.unsettle(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               CASE event.type
                 WHEN 'other' THEN PERFORM set_config('oncehook.effect_key', 'ohk_of_another', true);
                 WHEN 'session' THEN SET oncehook.effect_key = 'ohk_of_another';
                 WHEN 'empty' THEN PERFORM set_config('oncehook.effect_key', '', true);
               END CASE;
               RETURN app.book(event);
             END $$",
        )
        .await;
    let app = app("app.unsettle", &other.url, QUICK).start().await;
    for kind in ["other", "session", "empty"] {
        put(&app, &event(kind, kind, json!({"id": "ch_1"}))).await;
        let outcome = app.until_outcome("stripe", kind, "ledger").await;
        assert_eq!(
            (&outcome["result"], &outcome["attempts"]),
            (&json!("dead"), &json!(1)),
            "{kind}: {outcome}"
        );
        let reason = outcome["reason"].as_str().unwrap();
        assert!(
            reason.contains("the setting oncehook.effect_key"),
            "{kind}: {reason}"
        );
    }
    assert_eq!(other.count("app.ledger").await, 0);
    assert_eq!(other.count("applied").await, 0);
}

/// The node has asked once what the function returns; since then it was replaced.
#[tokio::test]
async fn a_function_that_was_replaced_there_answers_by_what_it_returns_now() {
    let other = books().await;
    let define = async |returns: &str, body: &str| {
        other
            .execute(&format!(
                "BEGIN; DROP FUNCTION IF EXISTS app.changes;
                 CREATE FUNCTION app.changes(event oncehook.delivered) RETURNS {returns} LANGUAGE sql AS $$ {body} $$; COMMIT"
            ))
            .await;
    };
    define("void", "SELECT app.book(event)").await;
    let app = app("app.changes", &other.url, QUICK).start().await;
    put(&app, &event("void", "x", json!({"id": "ch_1"}))).await;
    let outcome = app.until_outcome("stripe", "void", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    define(
        "jsonb",
        r#"SELECT '{"result": "failed", "reason": "over the limit"}'::jsonb"#,
    )
    .await;
    put(&app, &event("jsonb", "x", json!({"id": "ch_1"}))).await;
    let outcome = app.until_outcome("stripe", "jsonb", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["reason"]),
        (&json!("failed"), &json!("over the limit"))
    );
    // What is no answer is none, and a function that comes back is asked again.
    define("text", r#"SELECT '{"result": "done"}'::text"#).await;
    put(&app, &event("text", "x", json!({"id": "ch_1"}))).await;
    until("a try has failed", async || {
        !verdicts(&app, "text").await.is_empty()
    })
    .await;
    let tries = timeline(&app, "text").await["attempts"].clone();
    let error = tries[0]["error"].as_str().unwrap();
    assert!(
        error.contains("the function returns text now: it must return void or jsonb"),
        "{error}"
    );
    define("void", "SELECT app.book(event)").await;
    let outcome = app.until_outcome("stripe", "text", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    app.db.verify().await;
}

#[tokio::test]
async fn a_function_that_takes_too_long_is_stopped_and_holds_nothing() {
    let other = books().await;
    other
        .execute(
            "CREATE FUNCTION app.slow(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               IF event.attempt = 1 THEN PERFORM pg_sleep(3600); END IF;
               RETURN app.book(event);
             END $$",
        )
        .await;
    let app = app(
        "app.slow",
        &other.url,
        &format!("{QUICK}\ntimeout = \"300ms\""),
    )
    .start()
    .await;
    put(&app, &paid("evt_1")).await;
    let outcome = until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    let tries = timeline(&app, "evt_1").await["attempts"].clone();
    assert_eq!(
        (&tries[0]["verdict"], &tries[0]["error"]),
        (
            &json!("retry"),
            &json!("the handler took longer than its time-out of 300ms")
        )
    );
}

#[tokio::test]
async fn a_replay_asks_again_after_a_no_and_has_a_new_effect_after_a_yes() {
    let (other, proxy) = proxied_books().await;
    other
        .execute(
            "CREATE TABLE app.limit_is_off (yes bool);
             CREATE FUNCTION app.limited(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               IF EXISTS (SELECT FROM app.limit_is_off) THEN RETURN app.book(event); END IF;
               RETURN '{\"result\": \"failed\", \"reason\": \"over the limit\"}';
             END $$",
        )
        .await;
    let app = app("app.limited", &proxy.url(&other.name), QUICK)
        .start()
        .await;
    // The "no" stands in the ledger, for the tries of its run.
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    put(&app, &paid("evt_1")).await;
    let first = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&first["result"], &first["reason"], &first["attempts"]),
        (&json!("failed"), &json!("over the limit"), &json!(2))
    );
    assert_eq!(verdicts(&app, "evt_1").await, ["retry"]);
    assert_eq!(repeats(&other).await, 1);

    other
        .execute("INSERT INTO app.limit_is_off VALUES (true)")
        .await;
    let until_runs = async |runs: i64| {
        until(&format!("{runs} runs are done"), async || {
            app.db.count("outcome").await == runs
        })
        .await;
        app.until_outcome("stripe", "evt_1", "ledger").await
    };
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    let ran = replay(&app, "evt_1", &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    let second = until_runs(2).await;
    assert_eq!(
        (&second["result"], &second["run"], &second["effect_key"]),
        (&json!("succeeded"), &json!(2), &first["effect_key"])
    );
    assert_eq!(
        booked(&other, "evt_1").await,
        1,
        "asked once, then answered"
    );
    assert_eq!(repeats(&other).await, 1);

    let ran = replay(&app, "evt_1", &["--force"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    let third = until_runs(3).await;
    assert_eq!(
        (&third["result"], &third["run"]),
        (&json!("succeeded"), &json!(3))
    );
    assert_ne!(third["effect_key"], first["effect_key"]);
    assert_ne!(third["resource"], second["resource"]);
    assert_eq!(booked(&other, "evt_1").await, 2, "ordered by a person");
    assert_eq!(other.count("applied").await, 2);
    app.db.verify().await;
}

#[tokio::test]
async fn a_row_that_another_try_holds_is_waited_for_within_the_time_out() {
    let other = books().await;
    let app = app(
        "app.book",
        &other.url,
        &format!("{QUICK}\ntimeout = \"200ms\""),
    )
    .start()
    .await;
    let holder = other.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.applied")
        .await
        .unwrap();
    put(&app, &paid("evt_1")).await;
    until("a try has waited in vain", async || {
        !verdicts(&app, "evt_1").await.is_empty()
    })
    .await;
    holder.batch_execute("COMMIT").await.unwrap();
    until_booked_once(&app, &other, "evt_1").await;
    let tries = timeline(&app, "evt_1").await["attempts"].clone();
    assert_eq!(
        (&tries[0]["verdict"], &tries[0]["error"]),
        (
            &json!("retry"),
            &json!("an earlier try is still under way in its database")
        )
    );
}
