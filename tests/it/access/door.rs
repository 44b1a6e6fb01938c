//! Who is let in where there are no tokens, and that the door closes for good.

use std::time::Duration;

use oncehook::domain::Role;
use oncehook::engine::{Engine, EngineConfig};
use oncehook::http::{ServeConfig, ServeError, serve};
use oncehook::store::{Settings, Store};

use crate::support::raw::{RawHttp, RawResponse};
use crate::support::{TestApp, oncehook, until};

use super::{ask, create, get, until_outdated};

async fn raw(app: &TestApp, request: &str) -> RawResponse {
    let mut connection = RawHttp::connect(app.api).await;
    assert!(connection.send(request).await);
    connection.read_response().await.unwrap()
}

#[tokio::test]
async fn without_tokens_only_its_own_names_are_answered() {
    let app = TestApp::builder().stripe("stripe").start().await;
    let with_host = async |path: &str, host: &str| {
        raw(
            &app,
            &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        )
        .await
    };
    let own = app.api.to_string();
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8081", "[::1]", &own] {
        let answer = with_host("/v1/events", host).await;
        assert_eq!(answer.status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.1",
    ] {
        for path in ["/v1/events", "/metrics", "/nothing"] {
            let answer = with_host(path, host).await;
            assert_eq!(answer.status, 421, "{host}{path}: {answer:?}");
            assert!(answer.body.contains("urn:oncehook:problem:misdirected"));
        }
        assert_eq!(with_host("/healthz", host).await.status, 200, "{host}");
    }
    for request in [
        "GET /v1/events HTTP/1.0\r\n\r\n",
        "GET http://evil.example/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /v1/sources/stripe/pause HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ] {
        assert_eq!(raw(&app, request).await.status, 421, "{request}");
    }
    let twice = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
    let answer = raw(&app, twice).await;
    assert!([400, 421].contains(&answer.status), "{answer:?}");
    assert_eq!(app.db.count("audit").await, 0);

    // No page has somebody's token, so with one every name will do.
    let (_, token) = create(&app.db, "shop", &[Role::Read], None).await;
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nHost: oncehook.internal\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    assert_eq!(raw(&app, &request).await.status, 200);
}

#[tokio::test]
async fn the_first_token_closes_the_listener_for_good() {
    let mut app = TestApp::builder().stripe("stripe").start().await;
    let pause = "POST /v1/sources/stripe/pause";
    assert_eq!(get(app.api, "/v1/events", None).await, 200);
    // The node found no token a moment ago. Who shows one is not taken for nobody all the same.
    let (id, token) = create(&app.db, "shop", &[Role::Operate], None).await;
    let answer = ask(app.api, pause, Some(&token), "{}").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let actor = "SELECT actor FROM oncehook.audit WHERE action = 'source.pause'";
    assert_eq!(app.db.one::<String>(actor).await, "api:shop");
    until("it is closed", async || {
        get(app.api, "/v1/events", None).await == 401
    })
    .await;

    // Revoked, it still closes: here, and on a node that starts now.
    let id = id.to_string();
    let revoke = ["token", "revoke", &id, "--reason", "x"];
    let revoked = oncehook(&app.config(), &revoke, &[]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.said());
    let other = app.another_node().await;
    for api in [app.api, other.api] {
        assert_eq!(get(api, "/v1/events", None).await, 401);
    }
    // Whatever becomes of the table, a process that has seen a token never opens again.
    app.db.execute("DELETE FROM oncehook.token").await;
    until_outdated(async |outdated| {
        assert_eq!(get(app.api, "/v1/events", None).await, 401, "{outdated}");
        let shown = ask(app.api, pause, Some(&token), "{}").await.status;
        assert!(shown == 401 || !outdated, "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_accepted_closes_the_listener_at_once() {
    let app = TestApp::builder().start().await;
    assert_eq!(get(app.api, "/v1/nothing", None).await, 404);
    let (_, token) = create(&app.db, "shop", &[Role::Read], None).await;
    assert_eq!(get(app.api, "/v1/nothing", Some(&token)).await, 404);
    app.db.execute("DELETE FROM oncehook.token").await;
    until_outdated(async |_| assert_eq!(get(app.api, "/v1/nothing", None).await, 401)).await;
}

#[tokio::test]
async fn elsewhere_than_on_loopback_it_starts_only_with_a_token() {
    let mut app = TestApp::builder().start().await;
    let everywhere = [
        ("ONCEHOOK_LISTEN__API", "0.0.0.0:0"),
        ("ONCEHOOK_LISTEN__PUBLIC", "127.0.0.1:0"),
    ];
    let refused = oncehook(&app.config(), &["serve"], &everywhere).await;
    assert_eq!(refused.code, Some(1), "{}", refused.said());
    for text in [
        "0.0.0.0:0, which is no loopback address",
        "oncehook token create NAME --role read",
    ] {
        assert!(refused.stderr.contains(text), "{}", refused.stderr);
    }

    // The same for users of the crate.
    let store = Store::new(Settings::parse(&app.db.url).unwrap(), 1).unwrap();
    let engine = Engine::start(store, EngineConfig::default()).await.unwrap();
    let config = ServeConfig {
        public: "127.0.0.1:0".parse().unwrap(),
        api: "0.0.0.0:0".parse().unwrap(),
        body_bytes: 1 << 20,
        header_bytes: 64 << 10,
        body_time: Duration::from_secs(5),
        metrics: None,
    };
    let error = serve(engine.clone(), config.clone()).await.unwrap_err();
    assert!(matches!(error, ServeError::NoToken(_)), "{error}");

    let (_, token) = create(&app.db, "shop", &[Role::Read], None).await;
    let running = serve(engine.clone(), config).await.unwrap();
    let mut api = vec![running.api_addr()];
    let env = everywhere.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let node = app.another_node_in(env.to_vec()).await;
    api.push(node.api);
    for mut api in api {
        assert!(api.ip().is_unspecified(), "{api}");
        api.set_ip("127.0.0.1".parse().unwrap());
        assert_eq!(get(api, "/v1/events", None).await, 401);
        assert_eq!(get(api, "/v1/events", Some(&token)).await, 200);
        assert_eq!(get(api, "/healthz", None).await, 200);
    }
    running.stop(Duration::from_secs(5)).await;
    engine.shutdown().await;
}
