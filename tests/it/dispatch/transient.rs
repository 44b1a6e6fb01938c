//! Errors that only ask for another try, forced once in each statement of the dispatcher.

use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, dispatch, event, quick, sql, stripe_source};

const CODES: [&str; 3] = ["40001", "40P01", "55P03"];

/// Raises a code once, in whatever it is put; a sequence counts, since it survives the rollback.
fn raise_once(code: &str) -> String {
    format!(
        "CREATE SEQUENCE app.raised;
         CREATE FUNCTION app.raise_once() RETURNS bool LANGUAGE plpgsql AS $$
         BEGIN
           IF nextval('app.raised') = 1 THEN RAISE EXCEPTION 'forced' USING ERRCODE = '{code}'; END IF;
           RETURN true;
         END $$;
         CREATE FUNCTION app.raising() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM app.raise_once(); RETURN NEW; END $$;
         CREATE FUNCTION app.raising_book(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN PERFORM app.book(event); PERFORM app.raise_once(); END $$;"
    )
}

/// Five events that are claimed together; all are booked at their first try, once.
async fn forced_once(code: &str, trigger: &str, call: &str) {
    let setup = format!("{LEDGER}{}{trigger}", raise_once(code));
    let handler = quick(sql("ledger", call));
    let sources = || vec![stripe_source()];
    let idle = Inbox::start(&setup, vec![]).await;
    let storing = Inbox::on(idle.db.clone(), sources(), vec![handler.clone()], None).await;
    for n in 0..5 {
        let body = event(
            &format!("evt_{n}"),
            "charge.succeeded",
            json!({"amount": n}),
        );
        storing.put(&body).await;
    }
    let working = Inbox::on(idle.db.clone(), sources(), vec![handler], Some(dispatch())).await;
    for n in 0..5 {
        let (result, timeline) = working.until_outcome(&format!("evt_{n}"), "ledger").await;
        let tries = timeline.outcomes[0].attempts;
        assert_eq!(
            (result.as_str(), tries),
            ("succeeded", 1),
            "{code}: {trigger}"
        );
        assert!(timeline.attempts.is_empty(), "{:?}", timeline.attempts);
    }
    let raised: i64 = working.db.one("SELECT last_value FROM app.raised").await;
    assert!(raised > 1, "it was forced");
    let booked: Vec<i64> = working
        .db
        .all("SELECT count(*) FROM app.ledger GROUP BY key")
        .await;
    assert_eq!(booked, [1; 5]);
}

#[tokio::test]
async fn f74_a_claim_that_meets_one_is_made_again() {
    for code in CODES {
        let trigger = "CREATE TRIGGER forced BEFORE UPDATE ON oncehook.delivery FOR EACH STATEMENT EXECUTE FUNCTION app.raising()";
        forced_once(code, trigger, "app.book").await;
    }
}

#[tokio::test]
async fn f74_in_a_handler_it_counts_no_try_of_the_batch() {
    for code in CODES {
        forced_once(code, "", "app.raising_book").await;
    }
}

#[tokio::test]
async fn f74_in_the_settle_it_counts_no_try_of_the_batch() {
    for code in CODES {
        let trigger = "CREATE TRIGGER forced BEFORE INSERT ON oncehook.outcome FOR EACH ROW EXECUTE FUNCTION app.raising()";
        forced_once(code, trigger, "app.book").await;
    }
}
