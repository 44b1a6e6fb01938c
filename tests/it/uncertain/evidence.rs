//! Late answers: the transition is fenced, the evidence never is, and it decides.

use serde_json::json;

use crate::crash::{end_leases, paid, put};
use crate::support::{Gate, Node, Reply, TestApp, until};

use super::{Applies, Manner, Payments, due, history, land, until_for_people, until_uncertain};

const LINES: &str = "timeout = \"30s\"\nlease = \"35s\"";

/// The first node's call is out when the node is stopped; another node takes its lease away.
async fn stopped_with_a_call_out(app: &mut TestApp, payments: &Payments) -> Node {
    put(app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    app.sigstop();
    let second = app.another_node().await;
    end_leases(&app.db).await;
    until_uncertain(&second, "evt_1").await;
    second
}

#[tokio::test]
async fn an_answer_that_comes_after_the_lease_ends_the_uncertain_delivery() {
    for (reply, result, reason) in [
        (Reply::status(201), "succeeded", json!(null)),
        (
            Reply::status(422),
            "dead",
            json!("permanent error: HTTP 422"),
        ),
    ] {
        let payments = Payments::start().await;
        let answer = Gate::closed();
        payments.next([Manner::Says(reply.behind(&answer), Applies::Yes)]);
        let mut app = payments.probed("\"1h\"", LINES).start().await;
        let second = stopped_with_a_call_out(&mut app, &payments).await;
        answer.open();
        app.sigcont();
        let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
        assert_eq!(
            (
                &outcome["result"],
                &outcome["decided_by"],
                &outcome["reason"],
                &outcome["attempts"]
            ),
            (&json!(result), &json!("handler"), &reason, &json!(1))
        );
        let history = history(&second, "evt_1").await;
        assert_eq!(history.len(), 2, "{history:?}");
        assert!(history[0].starts_with("lost: ") && history[1].starts_with("evidence: "));
        assert!(payments.probes().is_empty(), "nobody had to be asked");
        assert_eq!(payments.calls().len(), 1);
        app.db.verify().await;
    }
}

#[tokio::test]
async fn a_late_answer_ends_what_waits_for_a_person_too() {
    let payments = Payments::start().await;
    let answer = Gate::closed();
    payments.next([Manner::Holds(answer.clone(), Applies::Yes)]);
    let lines = format!("on_unknown = \"hold\"\n{LINES}");
    let mut app = payments.app(&lines).start().await;
    let second = stopped_with_a_call_out(&mut app, &payments).await;
    until_for_people(&second, "evt_1").await;
    answer.open();
    app.sigcont();
    let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("handler"))
    );
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    app.db.verify().await;
}

/// As if no node came to what is uncertain.
const NOBODY_LOOKS: &str = "
CREATE FUNCTION nobody() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER nobody BEFORE UPDATE ON oncehook.delivery FOR EACH ROW
  WHEN (OLD.state = 'uncertain' AND NEW.probe_token IS NOT NULL) EXECUTE FUNCTION nobody()";

#[tokio::test]
async fn what_a_person_says_is_compared_with_an_answer_that_nobody_has_read_yet() {
    for (reply, answer, refused, instead, allowed) in [
        (
            Reply::status(201),
            "succeeded (po_81)",
            &["retry", "failed", "dead"][..],
            "say `succeeded`",
            "succeeded",
        ),
        (
            Reply::status(422),
            "dead",
            &["succeeded"],
            "say `failed` or `dead`",
            "failed",
        ),
    ] {
        let payments = Payments::start().await;
        let gate = Gate::closed();
        payments.next([Manner::Says(reply.behind(&gate), Applies::Yes)]);
        let lines = format!("on_unknown = \"hold\"\n{LINES}");
        let mut app = payments.app(&lines).start().await;
        let second = stopped_with_a_call_out(&mut app, &payments).await;
        until_for_people(&second, "evt_1").await;
        app.db.execute(NOBODY_LOOKS).await;
        gate.open();
        app.sigcont();
        until("the answer is kept", async || {
            let history = history(&second, "evt_1").await;
            history.iter().any(|line| line.starts_with("evidence"))
        })
        .await;
        // As an `external` handler's call would have said.
        app.db
            .execute("UPDATE oncehook.attempt SET resource = 'po_81' WHERE answer = 'succeeded'")
            .await;
        land(&app.db).await;
        let decide = async |word: &str| {
            let body = json!({ "handler": "payout", "as": word, "reason": "by telephone", "evidence": "ticket 9" });
            second.resolve("stripe", "evt_1", &body).await
        };
        let kept: String = app
            .db
            .one("SELECT to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') FROM oncehook.attempt WHERE verdict = 'evidence'")
            .await;
        for word in refused {
            let (status, problem) = decide(word).await;
            assert_eq!(status, 409, "{word} against {answer}: {problem}");
            let detail = problem["detail"].as_str().unwrap();
            for part in [
                &format!("answered late, {answer}, which is kept since {kept}"),
                instead,
            ] {
                assert!(detail.contains(part), "{part}: {detail}");
            }
        }
        let (status, resolved) = decide(allowed).await;
        assert_eq!(status, 200, "{resolved}");
        let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
        assert_eq!(
            (
                &outcome["result"],
                &outcome["decided_by"],
                &outcome["resource"]
            ),
            (
                &json!(allowed),
                &json!("operator"),
                &json!((allowed == "succeeded").then_some("po_81"))
            )
        );
        assert_eq!(payments.calls().len(), 1);
        app.db.verify().await;
    }
}

#[tokio::test]
async fn a_late_no_of_an_earlier_call_says_nothing_of_the_next_one() {
    let payments = Payments::start().await;
    let answer = Gate::closed();
    payments.next([
        Manner::Says(Reply::status(422).behind(&answer), Applies::No),
        Manner::Says(Reply::cut(), Applies::Yes),
    ]);
    let mut app = payments.probed("\"1h\", \"2h\"", LINES).start().await;
    let second = stopped_with_a_call_out(&mut app, &payments).await;
    // The receiver has not got it, so it is sent again, and the second call applies.
    land(&app.db).await;
    due(&app.db).await;
    payments.until_calls(2).await;
    until("the second call's result is unknown", async || {
        let history = history(&second, "evt_1").await;
        history.iter().any(|line| line.starts_with("unknown"))
    })
    .await;
    answer.open();
    app.sigcont();
    until("the first call's answer is kept", async || {
        let history = history(&second, "evt_1").await;
        history.iter().any(|line| line.starts_with("evidence"))
    })
    .await;
    due(&app.db).await;
    let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("probe")),
        "{:?}",
        history(&second, "evt_1").await
    );
    assert_eq!(payments.applied(), [1]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_late_answer_that_was_kept_before_is_read_when_the_next_call_is_lost() {
    let payments = Payments::start().await;
    let (first, second_gate) = (Gate::closed(), Gate::closed());
    // The service applies the first call late, behind the probe's "absent": it breaks the contract,
    // and what is known all the same is used.
    payments.next([
        Manner::Holds(first.clone(), Applies::No),
        Manner::Says(Reply::cut().behind(&second_gate), Applies::No),
    ]);
    let mut app = payments.probed("\"1h\"", LINES).start().await;
    let second = stopped_with_a_call_out(&mut app, &payments).await;
    land(&app.db).await;
    due(&app.db).await;
    payments.until_calls(2).await;
    first.open();
    app.sigcont();
    until("the first call's answer is kept", async || {
        let history = history(&second, "evt_1").await;
        history.iter().any(|line| line.starts_with("evidence"))
    })
    .await;
    second_gate.open();
    let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("handler"))
    );
    assert_eq!(payments.calls().len(), 2);
    app.db.verify().await;
}
