//! What a `sql` function says is read as what it says: nothing but its own answer books an event as done.

use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, event, quick, sql};
use crate::support::until;

/// The loop undoes an answer like `retry` by a code of its own, and calls a lost payload by another. A function that
/// raises them has failed all the same.
#[tokio::test]
async fn a_function_that_raises_a_code_of_the_loops_own_has_failed() {
    let calls = "
        CREATE FUNCTION app.raises(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM app.book(event);
          IF event.attempt = 1 THEN RAISE EXCEPTION 'not booked' USING ERRCODE = event.type; END IF;
        END $$;
        CREATE FUNCTION app.raises_or_answers(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM app.book(event);
          IF event.attempt = 1 THEN RAISE EXCEPTION 'not booked' USING ERRCODE = event.type; END IF;
          IF event.attempt = 2 THEN RETURN '{\"result\": \"retry\", \"reason\": \"in a moment\"}'; END IF;
          RETURN NULL;
        END $$;";
    for (function, answered) in [
        ("app.raises", vec![]),
        ("app.raises_or_answers", vec!["in a moment".to_owned()]),
    ] {
        let inbox = Inbox::start(&format!("{LEDGER}{calls}"), vec![sql("ledger", function)]).await;
        for code in ["OHRET", "OH404"] {
            inbox.put(&event(code, code, json!({"id": "ch_1"}))).await;
            let (result, timeline) = inbox.until_outcome(code, "ledger").await;
            assert_eq!(result, "succeeded", "{function} {code}");
            let errors: Vec<String> = timeline
                .attempts
                .iter()
                .map(|a| a.error.clone().unwrap_or_default())
                .collect();
            assert!(
                errors[0].starts_with(&format!("SQLSTATE {code}: not booked")),
                "{function} {code}: {errors:?}"
            );
            assert_eq!(errors[1..], answered, "{function} {code}");
            let booked = format!("app.ledger WHERE key = '{code}'");
            assert_eq!(inbox.db.count(&booked).await, 1, "{function} {code}");
        }
        inbox.db.verify().await;
    }
}

/// The node has asked at its start what the function returns; since then it was replaced.
#[tokio::test]
async fn a_function_that_was_replaced_answers_by_what_it_returns_now() {
    let inbox = Inbox::start(LEDGER, vec![quick(sql("ledger", "app.book"))]).await;
    inbox
        .put(&event("evt_void", "x", json!({"id": "ch_1"})))
        .await;
    inbox.until_outcome("evt_void", "ledger").await;
    let replace = async |returns: &str, body: &str| {
        inbox
            .db
            .execute(&format!(
                "BEGIN; DROP FUNCTION app.book;
                 CREATE FUNCTION app.book(event oncehook.delivered) RETURNS {returns} LANGUAGE sql AS $$ {body} $$; COMMIT"
            ))
            .await;
    };
    replace(
        "jsonb",
        r#"SELECT '{"result": "failed", "reason": "over the limit"}'::jsonb"#,
    )
    .await;
    inbox
        .put(&event("evt_jsonb", "x", json!({"id": "ch_1"})))
        .await;
    let (result, timeline) = inbox.until_outcome("evt_jsonb", "ledger").await;
    assert_eq!(
        (result.as_str(), timeline.outcomes[0].reason.as_deref()),
        ("failed", Some("over the limit"))
    );
    // What is no answer is none.
    replace("text", r#"SELECT '{"result": "done"}'::text"#).await;
    inbox
        .put(&event("evt_text", "x", json!({"id": "ch_1"})))
        .await;
    until("a try has failed", async || {
        !inbox.timeline("evt_text").await.attempts.is_empty()
    })
    .await;
    let tries = inbox.timeline("evt_text").await.attempts;
    let error = tries[0].error.as_deref().unwrap();
    assert!(
        error.contains("the function returns text now: it must return void or jsonb"),
        "{error}"
    );
    // Nor is that of another one, which a call finds by a default.
    inbox
        .db
        .execute(
            r#"BEGIN; DROP FUNCTION app.book;
               CREATE FUNCTION app.book(event oncehook.delivered, dry bool DEFAULT false) RETURNS jsonb
                 LANGUAGE sql AS $$ SELECT '{"result": "failed"}'::jsonb $$; COMMIT"#,
        )
        .await;
    inbox
        .put(&event("evt_default", "x", json!({"id": "ch_1"})))
        .await;
    until("a try has failed", async || {
        !inbox.timeline("evt_default").await.attempts.is_empty()
    })
    .await;
    let tries = inbox.timeline("evt_default").await.attempts;
    let error = tries[0].error.as_deref().unwrap();
    assert!(
        error.contains("there is no function app.book(oncehook.delivered) now"),
        "{error}"
    );
    replace("void", "SELECT").await;
    for key in ["evt_text", "evt_default"] {
        let (result, _) = inbox.until_outcome(key, "ledger").await;
        assert_eq!(result, "succeeded");
    }
    inbox.db.verify().await;
}

/// It is replaced while its batch is at work: what it answered was perhaps not read.
#[tokio::test]
async fn a_function_that_is_replaced_in_the_middle_of_its_batch_books_nothing_as_done() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
             CREATE FUNCTION app.first(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM app.book(event);
               -- In place of somebody else's transaction that commits now.
               DROP FUNCTION app.first;
               CREATE FUNCTION app.first(event oncehook.delivered) RETURNS jsonb LANGUAGE sql
                 AS $b$ SELECT '{{\"result\": \"failed\", \"reason\": \"over the limit\"}}'::jsonb $b$;
             END $$;"
        ),
        vec![quick(sql("ledger", "app.first"))],
    )
    .await;
    inbox.put(&event("evt_1", "x", json!({"id": "ch_1"}))).await;
    until("a try has failed", async || {
        !inbox.timeline("evt_1").await.attempts.is_empty()
    })
    .await;
    let timeline = inbox.timeline("evt_1").await;
    assert!(timeline.outcomes.is_empty(), "{:?}", timeline.outcomes);
    assert_eq!(inbox.db.count("app.ledger").await, 0);
}
