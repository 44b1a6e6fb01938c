//! The end of an uncertain head, and an event that comes meanwhile: whoever commits last looks at the
//! lane, so that nobody has to mend it.

use serde_json::json;

use crate::crash::{POLL, metric, proxied, put};
use crate::support::judge::trial::CALL_SECRET;
use crate::support::{Action, Node, PgProxy, Receiver, Reply, TestApp, until};

use super::{about, key, state};

/// Calls, whose lanes are the events' objects; the first answer is lost.
struct Scene {
    app: TestApp,
    proxy: PgProxy,
    /// Stores, past the proxy, and calls nobody.
    second: Node,
    _receiver: Receiver,
}

impl Scene {
    async fn new(on_unknown: &str) -> Self {
        let receiver = Receiver::start().await;
        receiver.reply(Reply::cut());
        receiver.always(Reply::status(200).body(r#"{"state":"applied"}"#));
        let (db, proxy) = proxied().await;
        let url = proxy.url(&db.name);
        let probe = match on_unknown {
            "probe" => format!(
                "probe = {{ url = {:?}, after = [\"1h\"] }}\n",
                receiver.url("/by-key/{effect_key}")
            ),
            _ => String::new(),
        };
        let lines = format!(
            "secrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\nlane = \"entity\"\non_unknown = {on_unknown:?}\n{probe}"
        );
        let mut app = TestApp::builder()
            .stripe("stripe")
            .toml(POLL)
            .http_handler("calls", &receiver.url("/hooks"), &lines)
            .on(db)
            .database_url(&url)
            .start()
            .await;
        put(&app, &about("ch_a", 0)).await;
        let scene_is_set =
            async || state(&app.db, &key("ch_a", 0)).await.as_deref() == Some("uncertain");
        until("its result is not known", scene_is_set).await;
        let stores = app
            .toml()
            .replace(&url, &app.db.url)
            .replace("[dispatch]\n", "[dispatch]\nenabled = false\n");
        let second = app.another_node_with(&stores).await;
        Self {
            app,
            proxy,
            second,
            _receiver: receiver,
        }
    }

    /// The head's end is written and not committed; another event comes into its lane, finds the head,
    /// and waits; then the end is committed.
    async fn another_comes(&self) {
        self.proxy.until_fired(1).await;
        put(&self.second, &about("ch_a", 1)).await;
        // Behind the look at `ch_a`, or in the same statement.
        put(&self.second, &about("ch_b", 1)).await;
        until("lanes were looked at", async || {
            state(&self.app.db, &key("ch_b", 1)).await.as_deref() == Some("ready")
        })
        .await;
        let waits = state(&self.app.db, &key("ch_a", 1)).await;
        assert_eq!(waits.as_deref(), Some("blocked"));
        self.proxy.thaw();
        self.app
            .until_outcome("stripe", &key("ch_a", 1), "calls")
            .await;
        for node in [&*self.app, &self.second] {
            let mended = metric(node, "oncehook_lanes_mended_total").await;
            let mended = mended.is_some_and(|lanes| lanes > 0.0);
            assert!(!mended, "the lane had to be mended");
        }
        self.app.db.verify().await;
    }
}

#[tokio::test]
async fn an_event_that_comes_while_a_probe_ends_the_head_is_the_next() {
    let scene = Scene::new("probe").await;
    scene
        .proxy
        .arm_after("lane_promote:", "COMMIT", Action::FreezeBefore);
    scene
        .app
        .db
        .execute("UPDATE oncehook.delivery SET run_at = now() WHERE state = 'uncertain'")
        .await;
    scene.another_comes().await;
}

#[tokio::test]
async fn an_event_that_comes_while_a_person_ends_the_head_is_the_next() {
    let scene = Scene::new("hold").await;
    scene
        .proxy
        .arm_after("audit_insert:", "COMMIT", Action::FreezeBefore);
    let key = key("ch_a", 0);
    let body = json!({ "handler": "calls", "as": "succeeded", "reason": "asked by telephone" });
    let resolved = scene.app.resolve("stripe", &key, &body);
    let ((status, said), ()) = tokio::join!(resolved, scene.another_comes());
    assert_eq!(status, 200, "{said}");
}
