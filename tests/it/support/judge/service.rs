//! The service behind an `http` handler, with an effect of its own and a log of it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::log::{Entry, Log, now_us};
use crate::support::node::free_address;
use crate::support::{Received, Receiver, Reply};

/// How one call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Applies, then answers 200.
    Good,
    /// Applies and answers after this time, which is longer than the caller waits.
    Slow(Duration),
    /// Applies, then closes the connection without an answer.
    Cut,
    /// Applies, then answers 500, as when what stands before the service fails.
    ErrorAfter,
    /// Answers 500 and has done nothing.
    ErrorBefore,
}

/// What is known of an effect key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Applying,
    Applied,
}

type Plan = dyn Fn(&str, usize) -> Behaviour + Send + Sync;

struct State {
    log: Log,
    honours_key: bool,
    plan: Box<Plan>,
    keys: Mutex<HashMap<String, (usize, Option<Known>)>>,
    /// Effect keys that it was asked about.
    asked: Mutex<HashSet<String>>,
}

/// A running service on an address that stays the same.
pub(crate) struct Service {
    address: SocketAddr,
    receiver: Option<Receiver>,
    state: Arc<State>,
}

impl Service {
    /// Starts one. `plan` says how a call goes, from the event's key and the number of calls with
    /// its effect key before. A service that does not honour the key applies at every call.
    pub(crate) async fn start(
        log: Log,
        honours_key: bool,
        plan: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let mut service = Self {
            address: free_address(),
            receiver: None,
            state: Arc::new(State {
                log,
                honours_key,
                plan: Box::new(plan),
                keys: Mutex::default(),
                asked: Mutex::default(),
            }),
        };
        service.listen().await;
        service
    }

    /// What a handler posts to.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/effects", self.address)
    }

    /// Where it can be asked about an effect key. Of each it cannot tell at the first time; then it says
    /// what is in its log, so that one that is slow to apply says "absent" before it has.
    pub(crate) fn probe_url(&self) -> String {
        format!("http://{}/by-key/{{effect_key}}", self.address)
    }

    /// Refuses connections from now on. What it is applying it applies.
    pub(crate) fn refuse(&mut self) {
        self.receiver = None;
    }

    /// Takes connections again.
    pub(crate) async fn listen(&mut self) {
        let state = Arc::clone(&self.state);
        let receiver = Receiver::answering(self.address, move |call| {
            let state = Arc::clone(&state);
            // On its own, so that an effect does not depend on who still listens.
            let answer = tokio::spawn(async move { state.answer(call).await });
            Box::pin(async move { answer.await.unwrap() })
        });
        self.receiver = Some(receiver.await);
    }
}

impl State {
    async fn answer(&self, call: Received) -> Reply {
        let effect_key = call.header("Idempotency-Key").unwrap().to_owned();
        if call.path == format!("/by-key/{effect_key}") {
            return Reply::status(200).body(self.about(&effect_key));
        }
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let key = body["id"].as_str().unwrap().to_owned();
        let amount = body["amount"].as_i64().unwrap();

        let (before, known) = self.begin(&effect_key);
        let behaviour = (self.plan)(&key, before);
        self.log.append(&Entry::Called {
            at_us: now_us(),
            effect_key: effect_key.clone(),
            key: key.clone(),
            behaviour: format!("{behaviour:?}"),
        });
        match (known, behaviour) {
            (None, Behaviour::ErrorBefore) => {
                self.set(&effect_key, None);
                return Reply::status(500);
            }
            (Some(_), Behaviour::ErrorBefore) => return Reply::status(500),
            (Some(Known::Applied), _) => return after(behaviour),
            (Some(Known::Applying), _) => return Reply::status(409),
            (None, _) => {}
        }
        if let Behaviour::Slow(time) = behaviour {
            tokio::time::sleep(time).await;
        }
        let applied = Entry::Applied {
            at_us: now_us(),
            effect_key: effect_key.clone(),
            key,
            amount,
        };
        self.log.append_durably(&applied).await;
        self.set(&effect_key, Some(Known::Applied));
        after(behaviour)
    }

    /// The answer to a probe.
    fn about(&self, effect_key: &str) -> &'static str {
        if self.asked.lock().unwrap().insert(effect_key.to_owned()) {
            return r#"{"state":"unknown"}"#;
        }
        match self.keys.lock().unwrap().get(effect_key) {
            Some((_, Some(Known::Applied))) => r#"{"state":"applied"}"#,
            _ => r#"{"state":"absent"}"#,
        }
    }

    /// Counts a call; whoever gets `None` is to apply the effect.
    fn begin(&self, effect_key: &str) -> (usize, Option<Known>) {
        let mut keys = self.keys.lock().unwrap();
        let (calls, known) = keys.entry(effect_key.to_owned()).or_default();
        let before = *calls;
        *calls += 1;
        let found = if self.honours_key { *known } else { None };
        known.get_or_insert(Known::Applying);
        (before, found)
    }

    fn set(&self, effect_key: &str, known: Option<Known>) {
        let mut keys = self.keys.lock().unwrap();
        keys.entry(effect_key.to_owned()).or_default().1 = known;
    }
}

/// The answer once the effect is there.
fn after(behaviour: Behaviour) -> Reply {
    match behaviour {
        Behaviour::Cut => Reply::cut(),
        Behaviour::ErrorAfter => Reply::status(500),
        _ => Reply::status(200),
    }
}
