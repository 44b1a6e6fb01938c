//! What `docs/handlers.md` says of answers, beyond `dispatch`.

use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::TestApp;
use crate::support::inbox::{Inbox, event, sql};

/// The effect was kept while the outcome said dead: an answer whose `result` is JSON null is
/// neither absent nor a known word.
#[tokio::test]
async fn a_null_result_is_no_answer_and_leaves_no_effect() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.answer(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              RETURN jsonb_build_object('result', NULL);
            END $$;"
        ),
        vec![sql("ledger", "app.answer")],
    )
    .await;
    inbox.put(&event("evt_1", "a.null", json!({}))).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(result, "dead", "{:?}", timeline.attempts);
    let booked: i64 = inbox.db.one("SELECT count(*) FROM app.ledger").await;
    assert_eq!(booked, 0);
}

/// An answer nested deeper than its reader goes made the reader panic: the event lost its lease
/// three times, its neighbours once, and it ended as poison.
#[tokio::test]
async fn an_answer_of_any_depth_and_size_is_read() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.answer(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
            DECLARE deep jsonb := (repeat('[', 5000) || repeat(']', 5000))::jsonb;
            BEGIN
              PERFORM app.book(event);
              RETURN CASE event.type
                WHEN 'bare' THEN deep
                WHEN 'beside' THEN jsonb_build_object('note', deep, 'resource', 'booking 7', 'number', '1e400'::jsonb)
                WHEN 'inside' THEN jsonb_build_object('result', deep)
                ELSE jsonb_build_object('result', 'failed', 'reason', deep) END;
            END $$;"
        ),
        vec![sql("ledger", "app.answer")],
    )
    .await;
    for (kind, expected, reason) in [
        ("bare", "succeeded", None),
        ("beside", "succeeded", None),
        ("inside", "dead", Some("unknown \"result\"")),
        ("reason", "failed", Some("no reason given")),
    ] {
        inbox.put(&event(kind, kind, json!({}))).await;
        let (result, timeline) = inbox.until_outcome(kind, "ledger").await;
        assert_eq!(result, expected, "{kind}: {:?}", timeline.attempts);
        let said = timeline.outcomes[0].reason.clone().unwrap_or_default();
        assert!(said.contains(reason.unwrap_or_default()), "{kind}: {said}");
        let resource = (kind == "beside").then_some("booking 7");
        assert_eq!(timeline.outcomes[0].resource.as_deref(), resource, "{kind}");
        assert_eq!(timeline.outcomes[0].attempts, 1, "{kind}");
    }
    let booked: i64 = inbox.db.one("SELECT count(*) FROM app.ledger").await;
    assert_eq!(booked, 3, "the refused answer's effect is undone");
}

/// An alert on what grows missed the first of each: the counter appeared with it.
#[tokio::test]
async fn counters_are_there_with_0_before_their_first_event() {
    let app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .sql_handler("ledger", "app.book", "")
        .start()
        .await;
    let (_, page) = app.get("/metrics").await;
    let page = page.as_str().unwrap();
    for counted in [
        r#"oncehook_requests_unavailable_total{source="stripe",reason="database"} 0"#,
        r#"oncehook_events_conflict_total{source="stripe"} 0"#,
        r#"oncehook_events_unreadable_total{source="stripe"} 0"#,
        r#"oncehook_refusal_bursts_total{source="stripe"} 0"#,
        r#"oncehook_deliveries_total{handler="ledger",outcome="dead"} 0"#,
        r#"oncehook_leases_lost_total{handler="ledger"} 0"#,
        r#"oncehook_breaker_opened_total{handler="ledger"} 0"#,
        r#"oncehook_claims_capped_total{handler="ledger"} 0"#,
        r#"oncehook_retries_deferred_total{handler="ledger"} 0"#,
        r#"oncehook_api_requests_refused_total{reason="misdirected"} 0"#,
        "oncehook_lanes_mended_total 0",
    ] {
        assert!(
            page.lines().any(|line| line == counted),
            "{counted} in {page}"
        );
    }
}
