//! Whatever happens to a key, in whatever order: each submission is answered as a map in memory says.
//!
//! One engine, one database, a key per sequence. The work is an `external` handler that ends when the sequence says
//! so, and how. That time passes is written into the database: its clock decides.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use oncehook::domain::operation::{OnFailure, OperationSpec, Profile, Response};
use oncehook::domain::{DecidedBy, Ending};
use oncehook::store::{Resolution, ResolveRequest, StoreError};
use oncehook::{
    Answer, Delivered, External, HandlerError, HandlerKind, HandlerSpec, ProbeSchedule, Probed,
    async_trait,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::sync::oneshot;

use crate::support::inbox::{Inbox, dispatch, quick};
use crate::support::{TestDb, until, until_some};

use super::wire::{self, Client, send};

/// What the keeper runs.
const PURGE: &str = include_str!("../../../src/store/sql/response_purge.sql");

/// Profile and what becomes of failures.
const OPERATIONS: [(&str, Profile, OnFailure); 3] = [
    ("release", Profile::Standard, OnFailure::Release),
    ("keep", Profile::Standard, OnFailure::Keep),
    ("strict", Profile::Ietf, OnFailure::Release),
];

/// Something that can happen to a key. What cannot happen as it stands is passed over.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A client submits this content.
    Submit(u8),
    /// The work that is under way ends.
    Finish(End),
    /// A person says what became of a call whose result is not known.
    Decide(Resolution),
    /// A call whose result is not known can be under way no longer.
    Land,
    /// The answer's time is over.
    AnswerOver,
    /// The key's time is over.
    KeyOver,
    /// The keeper empties what is over.
    Purge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    No,
    FailedBefore,
    Lost { applied: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![
        3 => Just(End::Done),
        2 => Just(End::No),
        3 => Just(End::FailedBefore),
        2 => Just(End::Lost { applied: true }),
        2 => Just(End::Lost { applied: false }),
    ];
    let word = prop_oneof![
        Just(Resolution::Succeeded),
        Just(Resolution::Failed),
        Just(Resolution::Dead),
        Just(Resolution::Retry),
    ];
    prop_oneof![
        8 => prop_oneof![4 => Just(0), 1 => Just(1)].prop_map(Step::Submit),
        6 => end.prop_map(Step::Finish),
        3 => word.prop_map(Step::Decide),
        1 => Just(Step::Land),
        2 => Just(Step::AnswerOver),
        2 => Just(Step::KeyOver),
        1 => Just(Step::Purge),
    ]
}

/// How an intent stands, as the map has it.
#[derive(Debug, Clone)]
enum State {
    Processing,
    Uncertain {
        applied: bool,
    },
    Ended {
        status: u16,
        body: Vec<u8>,
        kept: bool,
        /// It failed by the engine's own judgement and without effect.
        released: bool,
    },
}

/// What a key names.
#[derive(Debug, Clone)]
struct Intent {
    content: u8,
    state: State,
    /// A call whose result is not known may be under way.
    in_flight: bool,
    over: bool,
    /// The effect key of its calls.
    effect_key: Option<String>,
    conflicts: HashSet<u8>,
}

impl Intent {
    fn new(content: u8) -> Self {
        Self {
            content,
            state: State::Processing,
            in_flight: false,
            over: false,
            effect_key: None,
            conflicts: HashSet::new(),
        }
    }

    /// Whether the next submission is a new intent.
    fn gives_way(&self) -> bool {
        self.over && !self.in_flight && matches!(self.state, State::Ended { .. })
    }
}

/// What a submission must be told: a status, then a problem's type, a state, or the stored bytes.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Problem(u16, &'static str),
    Accepted(&'static str),
    Stored(u16, Vec<u8>),
}

/// One key in the map.
#[derive(Debug, Default)]
struct Known {
    now: Option<Intent>,
    intents: i64,
    conflicts: i64,
    /// Effect keys whose effect is there.
    applied: Vec<String>,
    /// Effect keys of earlier intents.
    spent: HashSet<String>,
}

impl Known {
    /// What a submission of this content is told, and what it makes.
    fn submit(
        &mut self,
        content: u8,
        (_, profile, on_failure): (&str, Profile, OnFailure),
    ) -> Told {
        let standard = profile == Profile::Standard;
        let former = self.now.take_if(|intent| intent.gives_way());
        self.spent
            .extend(former.and_then(|intent| intent.effect_key));
        let Some(intent) = &mut self.now else {
            self.now = Some(Intent::new(content));
            self.intents += 1;
            return Told::Accepted("processing");
        };
        if intent.content != content {
            self.conflicts += i64::from(intent.conflicts.insert(content));
            let status = if standard { 409 } else { 422 };
            return Told::Problem(status, "idempotency-key-mismatch");
        }
        match &intent.state {
            State::Processing if standard => Told::Accepted("processing"),
            State::Processing => Told::Problem(409, "idempotency-in-progress"),
            State::Uncertain { .. } => Told::Accepted("uncertain"),
            State::Ended { released: true, .. } if on_failure == OnFailure::Release => {
                intent.state = State::Processing;
                Told::Accepted("processing")
            }
            State::Ended {
                status,
                body,
                kept: true,
                ..
            } => Told::Stored(*status, body.clone()),
            State::Ended { .. } => Told::Problem(410, "idempotency-response-expired"),
        }
    }
}

/// The outside world of the handler: each call waits until it is told how it ends.
#[derive(Default)]
struct World {
    calls: Mutex<HashMap<String, (String, oneshot::Sender<End>)>>,
}

impl World {
    fn call_of(&self, key: &str) -> Option<(String, oneshot::Sender<End>)> {
        self.calls.lock().unwrap().remove(key)
    }
}

/// What a done intent is answered; another one at each call.
fn made(key: &str, no: u32) -> Response {
    Response::json(201, format!("{{\"made\": \"{key}\",  \"no\":{no}}}"))
}

#[derive(Default)]
struct Work {
    world: Arc<World>,
    made: Mutex<HashMap<String, u32>>,
}

#[async_trait]
impl External for Work {
    async fn call(&self, effect_key: &str, event: &Delivered) -> Result<Answer, HandlerError> {
        let (tell, told) = oneshot::channel();
        let key = event.key.to_string();
        let call = (effect_key.to_owned(), tell);
        self.world.calls.lock().unwrap().insert(key, call);
        match told.await? {
            End::Done => {
                let mut made_so_far = self.made.lock().unwrap();
                let no = made_so_far.entry(effect_key.to_owned()).or_default();
                *no += 1;
                Ok(Answer::Done.with_response(made(effect_key, *no)))
            }
            End::No => {
                let no = Response::json(402, "{ \"no\" : \"money\" }");
                Ok(Answer::Failed("no money".to_owned()).with_response(no))
            }
            End::FailedBefore => Ok(Answer::Permanent("closed".to_owned())),
            End::Lost { .. } => Err("the line went dead".into()),
        }
    }

    async fn probe(&self, _: &str, _: &Delivered) -> Result<Probed, HandlerError> {
        Err("it cannot be asked".into())
    }
}

struct Stage {
    inbox: Inbox,
    client: Client,
    world: Arc<World>,
}

impl Stage {
    async fn start() -> Self {
        let world = Arc::<World>::default();
        let handlers = OPERATIONS.map(|(name, profile, on_failure)| {
            let work = Work {
                world: Arc::clone(&world),
                ..Work::default()
            };
            let spec = OperationSpec {
                profile,
                on_failure,
                ..OperationSpec::default()
            };
            let never = ProbeSchedule::new(vec![Duration::from_hours(1)]).unwrap();
            quick(HandlerSpec {
                timeout: Duration::from_mins(5),
                lease: Duration::from_mins(6),
                breaker: None,
                retry_share: 100,
                probes: never,
                ..HandlerSpec::operation(name, HandlerKind::External(Arc::new(work)), spec)
            })
        });
        let db = Arc::new(TestDb::new().await);
        let inbox = Inbox::on(db, Vec::new(), handlers.to_vec(), Some(dispatch())).await;
        let client = Client::at(inbox.api);
        Self {
            inbox,
            client,
            world,
        }
    }

    /// Plays one sequence under a key of its own.
    async fn play(&self, operation: usize, key: &str, steps: &[Step]) -> Result<(), String> {
        let mut one = One {
            stage: self,
            operation: OPERATIONS[operation],
            key,
            event_key: format!("local:{key}"),
            known: Known::default(),
        };
        for (at, step) in steps.iter().enumerate() {
            one.step(*step)
                .await
                .map_err(|error| format!("step {at}, {step:?}: {error}"))?;
        }
        one.end().await
    }
}

/// One sequence.
struct One<'s> {
    stage: &'s Stage,
    operation: (&'static str, Profile, OnFailure),
    key: &'s str,
    event_key: String,
    known: Known,
}

impl One<'_> {
    async fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Submit(content) => return self.submit(content).await,
            Step::Finish(end) => return self.finish(end).await,
            Step::Decide(word) => return self.decide(word).await,
            Step::Land => {
                let open = "UPDATE oncehook.delivery SET in_flight_until = now() - interval '1 s' WHERE state = 'uncertain'";
                self.pass(open, "event_id").await;
                let call = "UPDATE oncehook.attempt SET in_flight_until = now() - interval '1 s' WHERE in_flight_until IS NOT NULL";
                self.pass(call, "event_id").await;
                if let Some(intent) = &mut self.known.now {
                    intent.in_flight = false;
                }
            }
            Step::AnswerOver => {
                let over = "UPDATE oncehook.response SET expires_at = now() - interval '1 s' WHERE purged_at IS NULL";
                self.pass(over, "event_id").await;
                if let Some(intent) = &mut self.known.now
                    && let State::Ended { kept, .. } = &mut intent.state
                {
                    *kept = false;
                }
            }
            Step::KeyOver => {
                let over =
                    "UPDATE oncehook.event_key SET expires_at = now() - interval '1 s' WHERE true";
                self.pass(over, "event_id").await;
                if let Some(intent) = &mut self.known.now {
                    intent.over = true;
                }
            }
            Step::Purge => {
                let client = self.stage.inbox.db.client().await;
                client.execute(PURGE, &[&500_i64]).await.unwrap();
            }
        }
        Ok(())
    }

    /// Runs a statement for the events that this key names or has named.
    async fn pass(&self, sql: &str, column: &str) {
        let sql = format!(
            "{sql} AND {column} IN (SELECT id FROM oncehook.event WHERE key = '{}')",
            self.event_key
        );
        self.stage.inbox.db.execute(&sql).await;
    }

    async fn submit(&mut self, content: u8) -> Result<(), String> {
        let expected = self.known.submit(content, self.operation);
        let (name, ..) = self.operation;
        let body = format!("{{\"content\": {content}}}");
        let intent = self.stage.client.intent(name, self.key, body);
        let answer = send(intent.header("Prefer", "respond-async")).await;
        let told = told(&answer);
        if told.as_ref() != Some(&expected) {
            return Err(format!("expected {expected:?}, got {answer:?}"));
        }
        Ok(())
    }

    async fn finish(&mut self, end: End) -> Result<(), String> {
        let Some(intent) = &mut self.known.now else {
            return Ok(());
        };
        if !matches!(intent.state, State::Processing) {
            return Ok(());
        }
        let (name, ..) = self.operation;
        let what = format!("the call of {}", self.event_key);
        let call = until_some(&what, async || self.stage.world.call_of(&self.event_key));
        let (effect_key, tell) = call.await;
        if self.known.spent.contains(&effect_key) {
            return Err("an effect key of an earlier intent".to_owned());
        }
        let of_intent = intent.effect_key.get_or_insert_with(|| effect_key.clone());
        if *of_intent != effect_key {
            return Err("another effect key in a further run".to_owned());
        }
        tell.send(end).map_err(|_| "the call was given up")?;
        let path = format!("/v1/operations/{name}/keys/{}", self.key);
        until("the end is stored", async || {
            self.stage.client.get(&path).await.json()["state"] != "processing"
        })
        .await;
        if end == End::Done || end == (End::Lost { applied: true }) {
            self.known.applied.push(effect_key.clone());
        }
        let dead = Response::made_up(name, Ending::Dead, DecidedBy::Handler, None, None);
        let (response, released) = match end {
            End::Done => (made(&effect_key, 1), false),
            End::No => (Response::json(402, "{ \"no\" : \"money\" }"), false),
            End::FailedBefore => (dead, true),
            End::Lost { applied } => {
                intent.in_flight = true;
                intent.state = State::Uncertain { applied };
                return Ok(());
            }
        };
        intent.state = ended(response, released);
        Ok(())
    }

    async fn decide(&mut self, word: Resolution) -> Result<(), String> {
        let Some(intent) = &mut self.known.now else {
            return Ok(());
        };
        let State::Uncertain { applied } = intent.state else {
            return Ok(());
        };
        // A person who lies is believed: here they tell the truth.
        let ending = match word {
            Resolution::Succeeded if applied => Ending::Succeeded,
            Resolution::Failed if !applied => Ending::Failed,
            Resolution::Dead if !applied => Ending::Dead,
            Resolution::Retry if !applied => Ending::Skipped,
            _ => return Ok(()),
        };
        let (name, ..) = self.operation;
        let request = ResolveRequest {
            source: name.to_owned(),
            key: self.event_key.clone(),
            handler: name.to_owned(),
            resolution: word,
            reason: "asked".to_owned(),
            evidence: None,
            actor: "test".to_owned(),
        };
        let said = self.stage.inbox.engine.store().resolve(&request).await;
        if word == Resolution::Retry {
            return match said {
                Ok(_) if !intent.in_flight => {
                    intent.state = State::Processing;
                    Ok(())
                }
                Err(StoreError::CallUnderWay { .. }) if intent.in_flight => Ok(()),
                said => Err(format!("{said:?}")),
            };
        }
        said.map_err(|error| error.to_string())?;
        let response = Response::made_up(name, ending, DecidedBy::Operator, None, None);
        intent.state = ended(response, false);
        Ok(())
    }

    /// Ends what is under way, and counts what is there.
    async fn end(&mut self) -> Result<(), String> {
        self.finish(End::Done).await?;
        let db = &self.stage.inbox.db;
        let of_key = |table: &str| format!("{table} WHERE key = '{}'", self.event_key);
        let stored = (
            db.count(&of_key("event")).await,
            db.count(&of_key("conflict")).await,
        );
        let expected = (self.known.intents, self.known.conflicts);
        if stored != expected {
            return Err(format!(
                "intents and conflicts: {stored:?}, expected {expected:?}"
            ));
        }
        let distinct: HashSet<&String> = self.known.applied.iter().collect();
        if distinct.len() != self.known.applied.len() {
            return Err("an intent took effect twice".to_owned());
        }
        Ok(())
    }
}

fn ended(response: Response, released: bool) -> State {
    State::Ended {
        status: response.status,
        body: response.body.to_vec(),
        kept: true,
        released,
    }
}

/// What an answer tells; `None`: nothing that the map knows.
fn told(answer: &wire::Answer) -> Option<Told> {
    if answer.replayed() {
        return Some(Told::Stored(answer.status, answer.body.as_bytes().to_vec()));
    }
    let json = answer.json();
    if answer.status == 202 {
        let states = ["processing", "uncertain"];
        let state = states.into_iter().find(|state| json["state"] == *state)?;
        return answer.header("Location").map(|_| Told::Accepted(state));
    }
    let problems = [
        "idempotency-key-mismatch",
        "idempotency-in-progress",
        "idempotency-response-expired",
    ];
    let problem = problems.into_iter().find(|code| answer.is_problem(code))?;
    Some(Told::Problem(answer.status, problem))
}

#[test]
fn whatever_happens_to_a_key_each_submission_is_answered_as_the_map_says() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let stage = runtime.block_on(Stage::start());
    let sequence = (0..OPERATIONS.len(), prop::collection::vec(step(), 4..24));
    // So many at once, each under its own key.
    let sequences = prop::collection::vec(sequence, 1..=6);
    let cases = std::env::var("ONCEHOOK_MAP_CASES").map_or(12, |cases| cases.parse().unwrap());
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let next = Mutex::new(0_u32);
    let ran = runner.run(&sequences, |sequences| {
        let played = sequences.iter().map(|(operation, steps)| {
            let mut next = next.lock().unwrap();
            *next += 1;
            let (key, stage) = (format!("k{next}"), &stage);
            async move { stage.play(*operation, &key, steps).await }
        });
        let played: Vec<_> = played.collect();
        for result in runtime.block_on(join_all(played)) {
            result.map_err(TestCaseError::fail)?;
        }
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    runtime.block_on(stage.inbox.db.verify());
}
