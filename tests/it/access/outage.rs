//! The database is away: nobody is let in, and the metrics are there.

use oncehook::domain::Role;

use crate::support::{PgProxy, TestApp, TestDb, until};

use super::{create, get};

/// A node that is connected through a proxy.
async fn behind(proxy: &PgProxy, db: TestDb) -> TestApp {
    let url = proxy.url(&db.name);
    TestApp::builder().on(db).database_url(url).start().await
}

#[tokio::test]
async fn while_the_database_is_away_nobody_is_let_in_and_metrics_are_given() {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    let (_, token) = create(&db, "shop", &[Role::Read], None).await;
    let (_, new) = create(&db, "new", &[Role::Read], None).await;
    let app = behind(&proxy, db).await;
    let known = Some(token.as_str());
    for how in ["lost", "silent"] {
        until("the token is known", async || {
            get(app.api, "/v1/handlers", known).await == 200
        })
        .await;
        match how {
            "lost" => proxy.refuse(),
            _ => proxy.freeze(),
        }
        // What was known holds for a second at most; `/v1/nothing` needs no database but for that.
        until("what was known does not hold any more", async || {
            get(app.api, "/v1/nothing", known).await == 503
        })
        .await;
        assert_eq!(get(app.api, "/v1/nothing", Some(&new)).await, 503, "{how}");
        assert_eq!(get(app.api, "/v1/nothing", None).await, 401, "{how}");
        assert_eq!(get(app.api, "/metrics", known).await, 200, "{how}");
        assert_eq!(get(app.api, "/metrics", Some(&new)).await, 503, "{how}");
        assert_eq!(get(app.api, "/metrics", None).await, 401, "{how}");
        assert_eq!(get(app.api, "/healthz", None).await, 200, "{how}");
        proxy.admit();
        proxy.thaw();
    }
    until("it is back", async || {
        get(app.api, "/v1/handlers", known).await == 200
    })
    .await;
}

#[tokio::test]
async fn without_tokens_nothing_is_open_either_while_the_database_is_away() {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    let app = behind(&proxy, db).await;
    assert_eq!(get(app.api, "/v1/nothing", None).await, 404);
    proxy.refuse();
    until(
        "that there is no token does not hold any more",
        async || get(app.api, "/v1/nothing", None).await == 503,
    )
    .await;
    assert_eq!(get(app.api, "/metrics", None).await, 200);
    proxy.admit();
    until("it is back", async || {
        get(app.api, "/v1/nothing", None).await == 404
    })
    .await;
}
