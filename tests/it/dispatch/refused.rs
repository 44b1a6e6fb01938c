//! Handlers that are made in code are held to the rules of the configuration.

use std::sync::Arc;
use std::time::Duration;

use oncehook::dispatch::{HandlerKind, HttpTarget, HttpUnknown};
use oncehook::domain::{LaneBy, OnUncertain, SecretText, VersionBy};
use oncehook::engine::EngineError;
use oncehook::{Engine, EngineConfig, HandlerSpec, Settings, SpecError, Store};

use crate::support::TestDb;
use crate::support::inbox::{Inbox, every, stripe_source};

fn calls(change: impl FnOnce(&mut HandlerSpec)) -> Vec<HandlerSpec> {
    let target = HttpTarget {
        url: "http://127.0.0.1:9/hooks".into(),
        secrets: vec![(
            "a".into(),
            SecretText::new("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="),
        )],
        on_unknown: HttpUnknown::Hold,
    };
    let mut spec = HandlerSpec::new("calls", every(), HandlerKind::Http(target));
    change(&mut spec);
    vec![spec]
}

/// What is refused, and the setting that is named.
fn refusals() -> [(Vec<HandlerSpec>, &'static str); 4] {
    let newer = |spec: &mut HandlerSpec| spec.apply_if_newer = Some(VersionBy::OccurredAt);
    [
        (
            calls(|spec| spec.lease = spec.timeout + Duration::from_secs(4)),
            "lease",
        ),
        (
            calls(|spec| {
                newer(spec);
                spec.lane = Some(LaneBy::Entity);
                spec.policy.on_uncertain = OnUncertain::Skip;
            }),
            "lane_on_uncertain",
        ),
        (calls(newer), "apply_if_newer"),
        ([calls(|_| ()), calls(|_| ())].concat(), "name"),
    ]
}

fn setting(error: EngineError) -> &'static str {
    let EngineError::Handler { handler, problem } = error else {
        panic!("{error}");
    };
    assert_eq!(handler, "calls");
    SpecError::setting(&problem)
}

#[tokio::test]
async fn a_handler_that_could_send_twice_is_refused_at_the_start_and_at_a_reload() {
    let db = Arc::new(TestDb::new().await);
    for (handlers, expected) in refusals() {
        let config = EngineConfig {
            sources: vec![stripe_source()],
            handlers,
            ..EngineConfig::default()
        };
        let store = Store::new(Settings::parse(&db.url).unwrap(), 4).unwrap();
        let Err(error) = Engine::start(store, config).await else {
            panic!("an engine began with a wrong `{expected}`");
        };
        assert_eq!(setting(error), expected);
    }
    assert_eq!(db.count("handler").await, 0, "nothing is registered");
    let good = calls(|spec| spec.lease = spec.timeout + Duration::from_secs(5));
    let inbox = Inbox::on(db, vec![stripe_source()], good, None).await;
    for (handlers, expected) in refusals() {
        let reloaded = inbox.engine.reload(vec![stripe_source()], handlers).await;
        assert_eq!(setting(reloaded.unwrap_err()), expected);
    }
}
