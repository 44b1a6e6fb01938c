//! A call begins within three seconds from when its claim was asked for, or not under that claim: whatever
//! of the database's was late in between, another node may have the delivery by then.

use serde_json::json;

use crate::crash::{paid, proxied, put};
use crate::support::{Action, PgProxy, until};

use super::Payments;

/// What takes longer than the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stalled {
    /// The answer to the COMMIT of the claim.
    Claim,
    /// The same of the claim of a suspect.
    SuspectsClaim,
    /// The comparison with what was applied last.
    Comparison,
}

impl Stalled {
    fn arm(self, proxy: &PgProxy) {
        let claim = match self {
            Self::Claim => "-- delivery_claim:",
            Self::SuspectsClaim => "-- delivery_claim_suspect:",
            Self::Comparison => return proxy.arm("-- latest_read:", Action::FreezeBefore),
        };
        proxy.arm_after(claim, "commit", Action::FreezeAfter);
    }
}

/// A first node claims and is held up there. When its lease has ended and the receiver says that nothing
/// came, a second node makes the call. What the first one does when it goes on must be no second call.
async fn held_up_at(stalled: Stalled) {
    let (db, proxy) = proxied().await;
    let (url, direct) = (proxy.url(&db.name), db.url.clone());
    let payments = Payments::start().await;
    let mut lines = "timeout = \"300ms\"\nlease = \"5300ms\"".to_owned();
    if stalled == Stalled::Comparison {
        lines.push_str("\nlane = \"entity\"\napply_if_newer = \"occurred_at\"");
    }
    let mut app = payments
        .probed("\"100ms\", \"1h\"", &lines)
        .on(db)
        .database_url(&url)
        .start()
        .await;
    let toml = app.toml().replace(&url, &direct);
    let storing = toml.replace("[dispatch]", "[dispatch]\nenabled = false");
    let receiving = app.another_node_with(&storing).await;
    proxy.freeze();
    put(&receiving, &paid("evt_1")).await;
    if stalled == Stalled::SuspectsClaim {
        app.db
            .execute("UPDATE oncehook.delivery SET suspect = true")
            .await;
    }
    // A claim that was under way before has found nothing: the next one.
    let mut fired = 0;
    until("the delivery is claimed", async || {
        stalled.arm(&proxy);
        proxy.thaw();
        fired += 1;
        proxy.until_fired(fired).await;
        app.db.count("delivery WHERE state = 'leased'").await == 1
    })
    .await;
    assert!(payments.calls().is_empty());
    let second = app.another_node_with(&toml).await;
    let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(2))
    );
    proxy.arm("-- delivery_give_back:", Action::FreezeBefore);
    proxy.thaw();
    until("the first node gives it back or calls", async || {
        proxy.fired() > fired || payments.calls().len() > 1
    })
    .await;
    proxy.thaw();
    assert_eq!(
        (payments.calls().len(), payments.applied()),
        (1, vec![1]),
        "sent under a claim that had ended"
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_claim_whose_answer_is_late_begins_nothing() {
    held_up_at(Stalled::Claim).await;
}

#[tokio::test]
async fn a_claim_of_a_suspect_whose_answer_is_late_begins_nothing() {
    held_up_at(Stalled::SuspectsClaim).await;
}

#[tokio::test]
async fn a_comparison_that_is_late_begins_nothing() {
    held_up_at(Stalled::Comparison).await;
}
