//! The service behind an `http` handler, with an effect of its own and a log of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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

/// What it says when it is asked about an effect key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// What was true so long ago: its answers come from a copy of its books that lags.
    Lagging(Duration),
    /// It cannot tell.
    CannotTell,
    /// That the effect is there, whatever is true.
    Applied,
    /// That it is not there, whatever is true.
    Absent,
}

impl Word {
    pub(crate) const TRUE: Self = Self::Lagging(Duration::ZERO);
}

/// What is known of an effect key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Applying,
    /// For the first time at this moment.
    Applied(Instant),
}

/// What has become of an effect key.
#[derive(Debug, Default)]
struct Story {
    calls: usize,
    questions: usize,
    known: Option<Known>,
}

type Plan = dyn Fn(&str, usize) -> Behaviour + Send + Sync;
type Words = dyn Fn(usize) -> Word + Send + Sync;

struct State {
    log: Log,
    honours_key: bool,
    plan: Box<Plan>,
    words: Box<Words>,
    keys: Mutex<HashMap<String, Story>>,
}

/// A running service on an address that stays the same.
pub(crate) struct Service {
    address: SocketAddr,
    receiver: Option<Receiver>,
    state: Arc<State>,
}

impl Service {
    /// Starts one. `plan` says how a call goes, from the event's key and the number of calls with
    /// its effect key before. A service that does not honour the key applies at every call. Asked about
    /// an effect key, it cannot tell at the first time; then it says what is in its log, so that one that
    /// is slow to apply says "absent" before it has.
    pub(crate) async fn start(
        log: Log,
        honours_key: bool,
        plan: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let words = |asked_before| match asked_before {
            0 => Word::CannotTell,
            _ => Word::TRUE,
        };
        Self::saying(log, honours_key, plan, words).await
    }

    /// As [`Service::start`]; `words` says what it says of an effect key, from the number of questions
    /// before.
    pub(crate) async fn saying(
        log: Log,
        honours_key: bool,
        plan: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static,
        words: impl Fn(usize) -> Word + Send + Sync + 'static,
    ) -> Self {
        let mut service = Self {
            address: free_address(),
            receiver: None,
            state: Arc::new(State {
                log,
                honours_key,
                plan: Box::new(plan),
                words: Box::new(words),
                keys: Mutex::default(),
            }),
        };
        service.listen().await;
        service
    }

    /// What a handler posts to.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/effects", self.address)
    }

    /// Calls that have come so far.
    pub(crate) fn calls(&self) -> usize {
        let keys = self.state.keys.lock().unwrap();
        keys.values().map(|story| story.calls).sum()
    }

    /// Where it can be asked about an effect key.
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
            let state = self.about(&effect_key);
            return Reply::status(200).body(&json!({ "state": state }).to_string());
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
            (Some(Known::Applied(_)), _) => return after(behaviour),
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
        self.set(&effect_key, Some(Known::Applied(Instant::now())));
        after(behaviour)
    }

    /// The answer to a probe.
    fn about(&self, effect_key: &str) -> &'static str {
        let mut keys = self.keys.lock().unwrap();
        let story = keys.entry(effect_key.to_owned()).or_default();
        let word = (self.words)(story.questions);
        story.questions += 1;
        let applied_for = match story.known {
            Some(Known::Applied(at)) => Some(at.elapsed()),
            _ => None,
        };
        let said = match word {
            Word::CannotTell => "unknown",
            Word::Applied => "applied",
            Word::Lagging(lag) if applied_for.is_some_and(|time| time >= lag) => "applied",
            Word::Lagging(_) | Word::Absent => "absent",
        };
        self.log.append(&Entry::Told {
            at_us: now_us(),
            effect_key: effect_key.to_owned(),
            said: said.to_owned(),
            applied: applied_for.is_some(),
        });
        said
    }

    /// Counts a call; whoever gets `None` is to apply the effect.
    fn begin(&self, effect_key: &str) -> (usize, Option<Known>) {
        let mut keys = self.keys.lock().unwrap();
        let story = keys.entry(effect_key.to_owned()).or_default();
        let before = story.calls;
        story.calls += 1;
        let found = if self.honours_key { story.known } else { None };
        story.known.get_or_insert(Known::Applying);
        (before, found)
    }

    /// What was applied once stays so, whatever a later call comes to.
    fn set(&self, effect_key: &str, known: Option<Known>) {
        let mut keys = self.keys.lock().unwrap();
        let story = keys.entry(effect_key.to_owned()).or_default();
        if !matches!(story.known, Some(Known::Applied(_))) {
            story.known = known;
        }
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
