//! `oncehook health`: what a supervisor asks.

use std::process::Output;

use crate::support::{TestApp, TestDb, until};

async fn health(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    tokio::task::spawn_blocking(move || {
        std::process::Command::new(env!("CARGO_BIN_EXE_oncehook"))
            .arg("health")
            .args(arguments)
            .env_remove("ONCEHOOK_CONFIG")
            .output()
            .unwrap()
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn health_tells_a_living_node_from_a_ready_one_and_a_dead_one() {
    let db = TestDb::new().await;
    let mut app = TestApp::builder().on(db).stripe("stripe").start().await;
    let url = format!("http://{}", app.public);
    let config = app.config();
    // The node's own file names port 0, so the address comes from here.
    let config = ["--config", config.to_str().unwrap()];
    let alive = health(&["--url", &url, config[0], config[1]]).await;
    assert_eq!(alive.status.code(), Some(0), "{alive:?}");
    assert_eq!(alive.stdout, b"ok\n");
    let ready = health(&["--url", &url, "--ready", "--json"]).await;
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    assert_eq!(ready.stdout, b"{\"healthy\":true,\"status\":200}\n");

    app.db.execute("DROP TABLE oncehook.receipt CASCADE").await;
    // A good answer holds for a second.
    until("the node says that it cannot write", async || {
        health(&["--url", &url, "--ready"]).await.status.code() == Some(1)
    })
    .await;
    assert_eq!(health(&["--url", &url]).await.status.code(), Some(0));

    app.kill9();
    app.exit().await;
    assert_eq!(health(&["--url", &url]).await.status.code(), Some(3));
}
