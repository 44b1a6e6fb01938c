//! An engine inside the test process, with a Stripe source and handlers given as values.
//!
//! For tests of one node's behaviour; tests that kill and stop nodes use [`super::TestApp`].

use std::sync::Arc;
use std::time::Duration;

use oncehook::dispatch::{DispatchConfig, HandlerKind, HandlerSpec};
use oncehook::domain::{Pattern, RetryPolicy, Secret, SecretText};
use oncehook::engine::{Engine, EngineConfig};
use oncehook::http::{self, Running, ServeConfig};
use oncehook::provider::{self, OnConflict, Source};
use oncehook::store::query::Timeline;
use oncehook::store::{Settings, Store};
use serde_json::Value;

use super::signer::{self, STRIPE_SECRET};
use super::{TestDb, until_some};

/// A running engine on a database of its own.
pub(crate) struct Inbox {
    pub(crate) engine: Engine,
    pub(crate) db: Arc<TestDb>,
    pub(crate) public: std::net::SocketAddr,
    pub(crate) api: std::net::SocketAddr,
    http: reqwest::Client,
    _running: Running,
}

/// The Stripe source of every [`Inbox`], named `stripe`.
pub(crate) fn stripe_source() -> Source {
    source(
        "stripe",
        "stripe",
        STRIPE_SECRET,
        &provider::Options::default(),
    )
}

/// A source with one secret, labelled `a`.
pub(crate) fn source(
    name: &str,
    preset: &str,
    secret: &str,
    options: &provider::Options,
) -> Source {
    let provider = provider::build(preset, options).unwrap();
    let key = provider.key(&SecretText::new(secret), true).unwrap();
    Source {
        name: name.into(),
        was: None,
        provider,
        secrets: vec![Secret {
            label: "a".into(),
            key,
            until: None,
        }],
        accept_modes: None,
        on_conflict: OnConflict::Ack,
    }
}

/// A `sql` handler for every event that retries at once.
pub(crate) fn sql(name: &str, call: &str) -> HandlerSpec {
    quick(HandlerSpec::new(
        name,
        every(),
        HandlerKind::Sql { call: call.into() },
    ))
}

/// Takes every event.
pub(crate) fn every() -> Vec<Pattern> {
    vec![Pattern::parse("*:*").unwrap()]
}

/// The same handler with retries after milliseconds.
pub(crate) fn quick(mut spec: HandlerSpec) -> HandlerSpec {
    spec.policy.retry = RetryPolicy {
        span: Duration::from_mins(1),
        first: Duration::from_millis(20),
        max: Duration::from_millis(100),
    };
    spec
}

/// Short polls, so that retries are quick.
pub(crate) fn dispatch() -> DispatchConfig {
    DispatchConfig {
        poll: Duration::from_millis(50),
        grace: Duration::from_secs(5),
        connections: 4,
    }
}

impl Inbox {
    /// Starts an engine after `setup` ran on the fresh database.
    pub(crate) async fn start(setup: &str, handlers: Vec<HandlerSpec>) -> Self {
        let db = Arc::new(TestDb::new().await);
        db.client().await.batch_execute(setup).await.unwrap();
        Self::on(db, vec![stripe_source()], handlers, Some(dispatch())).await
    }

    /// Starts another engine on the same database.
    pub(crate) async fn on(
        db: Arc<TestDb>,
        sources: Vec<Source>,
        handlers: Vec<HandlerSpec>,
        dispatch: Option<DispatchConfig>,
    ) -> Self {
        let url = db.url.clone();
        Self::through(&url, db, sources, handlers, dispatch).await
    }

    /// The same, connected by another URL, such as that of a `PgProxy`.
    pub(crate) async fn through(
        url: &str,
        db: Arc<TestDb>,
        sources: Vec<Source>,
        handlers: Vec<HandlerSpec>,
        dispatch: Option<DispatchConfig>,
    ) -> Self {
        let settings = Settings::parse(url).unwrap();
        Self::with(settings, db, sources, handlers, dispatch).await
    }

    /// The same, connected in another way.
    pub(crate) async fn with(
        settings: Settings,
        db: Arc<TestDb>,
        sources: Vec<Source>,
        handlers: Vec<HandlerSpec>,
        dispatch: Option<DispatchConfig>,
    ) -> Self {
        let store = Store::new(settings, 4).unwrap();
        let config = EngineConfig {
            sources,
            handlers,
            dispatch,
            ..EngineConfig::default()
        };
        let engine = Engine::start(store, config).await.unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let running = http::serve(
            engine.clone(),
            ServeConfig {
                public: any,
                api: any,
                body_bytes: 1 << 20,
                header_bytes: 64 << 10,
                body_time: Duration::from_secs(5),
                metrics: None,
            },
        )
        .await
        .unwrap();
        let (public, api) = (running.public_addr(), running.api_addr());
        Self {
            engine,
            db,
            public,
            api,
            http: super::node::client(),
            _running: running,
        }
    }

    /// Sends a correctly signed event to source `stripe`; the answer must be 200.
    pub(crate) async fn put(&self, event: &Value) -> Value {
        let (status, body) = self.try_put(event).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The same, whatever the answer.
    pub(crate) async fn try_put(&self, event: &Value) -> (u16, String) {
        let body = serde_json::to_vec(event).unwrap();
        let response = self
            .http
            .post(format!("http://{}/webhooks/stripe", self.public))
            .header(
                "stripe-signature",
                signer::stripe(STRIPE_SECRET, signer::now_s(), &body),
            )
            .body(body)
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// What is known about an event of source `stripe`.
    pub(crate) async fn timeline(&self, key: &str) -> Timeline {
        self.engine.store().timeline("stripe", key).await.unwrap()
    }

    /// Waits for the outcome of the last run, which must have this number.
    pub(crate) async fn until_run(&self, key: &str, handler: &str, run: i16) -> (String, Timeline) {
        until_some(
            &format!("an outcome of {handler} for {key}, run {run}"),
            async || {
                let timeline = self.timeline(key).await;
                let result = timeline
                    .outcomes
                    .iter()
                    .find(|o| o.handler == handler && o.run == run)?
                    .result
                    .clone();
                Some((result, timeline))
            },
        )
        .await
    }

    /// Waits for the outcome of the first run.
    pub(crate) async fn until_outcome(&self, key: &str, handler: &str) -> (String, Timeline) {
        self.until_run(key, handler, 1).await
    }
}

/// A live Stripe event.
#[expect(clippy::needless_pass_by_value, reason = "reads well with json!")]
pub(crate) fn event(id: &str, event_type: &str, object: Value) -> Value {
    serde_json::json!({
        "id": id, "object": "event", "type": event_type, "livemode": true, "created": 1_764_655_200,
        "data": { "object": object },
    })
}
