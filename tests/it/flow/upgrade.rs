//! A node of before pauses and caps works on the schema of after: nodes are replaced one by one.

use oncehook::store::flow::Pausable;

use crate::crash::{QUICK, booking, end_leases, ledger, paid, put, until_booked_once};
use crate::support::until;

use super::{pause, resume, until_known};

/// Its claim, which knows nothing of what is set aside.
const CLAIM_OF_BEFORE: &str = "
UPDATE oncehook.delivery d
   SET state = 'leased', lease_token = gen_random_uuid(), leased_at = clock_timestamp(),
       lease_until = clock_timestamp() + interval '1 h', first_try_at = coalesce(first_try_at, clock_timestamp())
 WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM oncehook.delivery
                            WHERE state = 'ready' AND NOT suspect AND run_at <= now()
                            ORDER BY run_at LIMIT 50 FOR UPDATE SKIP LOCKED))
";

#[tokio::test]
async fn a_node_of_before_claims_what_is_set_aside() {
    let app = booking().start().await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, "oncehook_source_paused", true).await;
    put(&app, &paid("evt_1")).await;
    let aside = "delivery WHERE state = 'ready' AND paused_source IS NOT NULL";
    until("it is set aside", async || app.db.count(aside).await == 1).await;
    app.db.execute(CLAIM_OF_BEFORE).await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    app.db.verify().await;
    // It dies. Those of after take it up where the pause has it.
    end_leases(&app.db).await;
    until("it is set aside again", async || {
        app.db.count(aside).await == 1
    })
    .await;
    resume(&app.db, Pausable::Source, "stripe").await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_handler_that_a_node_of_before_has_registered_gets_the_row_of_its_caps() {
    let mut app = ledger().start().await;
    app.db
        .execute("INSERT INTO oncehook.handler (name, first_name) VALUES ('ledger', 'ledger')")
        .await;
    let lines = format!(
        "\n[[handler]]\nname = \"ledger\"\nkind = \"sql\"\ncall = \"app.book\"\nevents = [\"*:*\"]\n{QUICK}\nmax_in_flight = 2\n"
    );
    let toml = format!("{}{lines}", app.toml());
    app.reconfigure(&toml);
    app.restart().await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}
