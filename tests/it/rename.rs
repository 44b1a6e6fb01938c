//! `was`: a configuration of before a rename is refused, at a start and at a reload.

use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::{TestApp, oncehook, until};

/// What was found: a node that was restarted with the file of before the rename registered the old
/// name anew. Nothing was known under it, so a duplicate was booked a second time.
#[tokio::test]
async fn a_name_that_was_renamed_is_never_registered_anew() {
    for (renamed, known) in [
        ("name = \"bank\"\nwas = \"stripe\"", "source"),
        ("name = \"books\"\nwas = \"ledger\"", "handler"),
    ] {
        let mut app = TestApp::builder()
            .setup(LEDGER)
            .stripe("stripe")
            .toml("[[handler]]\nname = \"ledger\"\nkind = \"sql\"\ncall = \"app.book\"\nevents = [\"*:*\"]\n")
            .start()
            .await;
        let event = json!({"id": "evt_1", "type": "charge.succeeded", "livemode": true, "data": {"object": {"id": "ch_1"}}});
        app.post_stripe("stripe", &event).await;
        app.until_outcome("stripe", "evt_1", "ledger").await;
        let before = app.toml().to_owned();
        let was = renamed.rsplit_once('=').unwrap().1.trim();
        let after = before.replacen(&format!("name = {was}"), renamed, 1);
        assert_ne!(before, after);
        app.reconfigure(&after);
        app.sighup();
        let count = format!("SELECT count(*) FROM oncehook.{known} WHERE name <> first_name");
        until("it is renamed", async || {
            app.db.one::<i64>(&count).await == 1
        })
        .await;

        app.reconfigure(&before);
        app.sighup();
        app.until_logged("configuration not reloaded, the old one stays")
            .await;
        let ran = oncehook(&app.config(), &["serve"], &[]).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.said().contains("was renamed to"), "{}", ran.said());
        let rows: i64 = app
            .db
            .one(&format!("SELECT count(*) FROM oncehook.{known}"))
            .await;
        assert_eq!(rows, 1, "no second {known}");

        // The rename can be taken back.
        let new = renamed
            .split_once('"')
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0;
        let back = before.replacen(
            &format!("name = {was}"),
            &format!("name = {was}\nwas = \"{new}\""),
            1,
        );
        app.reconfigure(&back);
        app.sighup();
        until("it has its first name again", async || {
            app.db.one::<i64>(&count).await == 0
        })
        .await;
    }
}
