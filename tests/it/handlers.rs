//! What `docs/handlers.md` says of answers, beyond `dispatch`.

use serde_json::json;

use crate::dispatch::LEDGER;
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
