//! The whole outside world at once: receivers of every kind, nodes that are killed and cut off at random,
//! and verdicts from the logs of those outside alone.
//!
//! | receiver | it | setting | must hold |
//! | --- | --- | --- | --- |
//! | `honours` | honours the effect key | `retry` | each event is applied once |
//! | `late` | ignores it; its probe lags, within the lease | `probe` | once |
//! | `unsure` | ignores it; cannot tell at first | `probe` | once |
//! | `mute` | ignores it; never can tell | `probe` | at most once, and what is open is listed |
//! | `neither` | ignores it; cannot be asked | `hold` | at most once, and what is open is listed |
//! | `boasts` | ignores it; says "applied" whatever is true | `probe` | at most once; what was not is recorded as the probe's word |
//! | `lies` | ignores it; says "absent" once of what is there | `probe` | not more often than it lied, and once more |
//! | `stale` | the same, as its probe lags for longer than the lease | `probe` | the same |
//!
//! The last three break what a probe has to be; they show what it costs, and whom.
//!
//! `just world` runs it again and again. `WORLD_SEED` gives the seed, `WORLD_RUNS` how often (20).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::crash::{POLL, proxied};
use crate::support::dice::{dice, seed};
use crate::support::judge::trial::{CALL_LINES, CALL_SECRET};
use crate::support::judge::{
    Behaviour, Entry, Log, Message, Provider, SECRET, SOURCE, Service, Word, log,
};
use crate::support::{Node, PgProxy, TestApp, until};

use super::unknown::uncertain;

/// Events per receiver.
const EVENTS: usize = 14;
/// Kills and cuts.
const FAULTS: u64 = 5;
/// Between an effect and the copy of the books that a probe of `late` reads. With the second in which a
/// call is sent, the time that it takes and this, it is within the lease of 5.3 s.
const LAG: Duration = Duration::from_secs(2);
/// A call that is given up after 300 ms, and applied.
const SLOW: Duration = Duration::from_millis(600);
/// Before a sender comes again.
const BACK_OFF: Duration = Duration::from_millis(50);

/// What must hold of a receiver's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    Once,
    /// At most once, and whatever is open is listed.
    AtMostOnce,
    /// At most once; what is said to be done and is not, is the probe's word.
    AtMostOnceAsItSays,
    /// Once, and once more for each lie.
    OnceAndPerLie,
}

struct Kind {
    name: &'static str,
    honours_key: bool,
    on_unknown: &'static str,
    words: fn(usize) -> Word,
    promise: Promise,
}

const fn probed(name: &'static str, words: fn(usize) -> Word, promise: Promise) -> Kind {
    Kind {
        name,
        honours_key: false,
        on_unknown: "probe",
        words,
        promise,
    }
}

const KINDS: [Kind; 8] = [
    Kind {
        name: "honours",
        honours_key: true,
        on_unknown: "retry",
        words: |_| Word::CannotTell,
        promise: Promise::Once,
    },
    probed("late", |_| Word::Lagging(LAG), Promise::Once),
    probed(
        "unsure",
        |asked_before| match asked_before {
            0 | 1 => Word::CannotTell,
            _ => Word::TRUE,
        },
        Promise::Once,
    ),
    probed("mute", |_| Word::CannotTell, Promise::AtMostOnce),
    Kind {
        name: "neither",
        honours_key: false,
        on_unknown: "hold",
        words: |_| Word::CannotTell,
        promise: Promise::AtMostOnce,
    },
    probed("boasts", |_| Word::Applied, Promise::AtMostOnceAsItSays),
    probed(
        "lies",
        // The third question of each falls behind the lease, where "absent" counts.
        |asked_before| match asked_before {
            0 | 1 => Word::CannotTell,
            2 => Word::Absent,
            _ => Word::TRUE,
        },
        Promise::OnceAndPerLie,
    ),
    probed(
        "stale",
        |_| Word::Lagging(Duration::from_hours(1)),
        Promise::OnceAndPerLie,
    ),
];

/// How the calls of an event go. Every receiver meets each manner; which event has it is drawn.
fn plan(seed: u64) -> impl Fn(&str, usize) -> Behaviour + Copy + Send + Sync {
    move |key, calls_before| {
        let n: usize = key.strip_prefix("evt_").unwrap().parse().unwrap();
        let drawn = usize::try_from(dice(seed, 0, 1) % 64).unwrap();
        match (calls_before, (n + drawn) % 7) {
            (0, 0) => Behaviour::Slow(SLOW),
            (0, 1) => Behaviour::Cut,
            (0, 2) => Behaviour::ErrorAfter,
            (0, 3) => Behaviour::ErrorBefore,
            _ => Behaviour::Good,
        }
    }
}

struct Party {
    kind: &'static Kind,
    service: Service,
    log: Log,
}

struct World {
    seed: u64,
    provider: Provider,
    sent: Log,
    parties: Vec<Party>,
    messages: Vec<Message>,
    /// Of the logs.
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pace = Duration::from_millis(1);
        let open = |name: &str| Log::open(folder.path().join(name), pace);
        let sent = open("sent.jsonl");
        let mut parties = Vec::new();
        let mut messages = Vec::new();
        for (place, kind) in KINDS.iter().enumerate() {
            let log = open(kind.name);
            let service = Service::saying(log.clone(), kind.honours_key, plan(seed), kind.words);
            parties.push(Party {
                kind,
                service: service.await,
                log,
            });
            messages.extend((0..EVENTS).map(|n| Message::original(place * 100 + n, kind.name)));
        }
        // Those of all receivers at once, in an order of the seed.
        messages.sort_by_key(|message| dice(seed, message.amount.unsigned_abs(), 2));
        Self {
            seed,
            provider: Provider::new(sent.clone()),
            sent,
            parties,
            messages,
            _folder: folder,
        }
    }

    /// A node with a handler per receiver, behind a proxy.
    async fn start(&self) -> (TestApp, PgProxy) {
        let (db, proxy) = proxied().await;
        let url = proxy.url(&db.name);
        let mut app = TestApp::builder().source(SOURCE, "github", SECRET, "");
        for Party { kind, service, .. } in &self.parties {
            let probe = format!(
                "probe = {{ url = {:?}, after = [\"50ms\", \"400ms\", \"5500ms\", \"6500ms\"] }}",
                service.probe_url()
            );
            let lines = format!(
                "events = [\"{SOURCE}:{name}\"]\nsecrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\n\
                 on_unknown = {:?}\n{}\nconcurrency = 3\n{CALL_LINES}",
                kind.on_unknown,
                if kind.on_unknown == "probe" {
                    &probe
                } else {
                    ""
                },
                name = kind.name,
            );
            app = app.http_handler(kind.name, &service.url(), &lines);
        }
        let app = app.toml(POLL).on(db).database_url(url).start().await;
        (app, proxy)
    }

    /// Sends everything from several clients, each message until it is told 200.
    fn send(&self, nodes: [SocketAddr; 2]) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let share: Vec<Message> = self
                .messages
                .iter()
                .skip(client)
                .step_by(4)
                .cloned()
                .collect();
            let provider = self.provider.clone();
            clients.spawn(async move {
                for (turn, message) in share.iter().enumerate() {
                    let mut node = turn % 2;
                    while provider
                        .send(nodes[node], message)
                        .await
                        .is_none_or(|told| told.status != 200)
                    {
                        node = 1 - node;
                        tokio::time::sleep(BACK_OFF).await;
                    }
                }
            });
        }
        clients
    }

    /// Each fault comes when so many calls more have come as the seed says.
    async fn fire(&self, first: &mut TestApp, second: &mut Node, proxy: &PgProxy) {
        let mut calls = 0;
        for n in 0..FAULTS {
            calls += 4 + usize::try_from(dice(self.seed, n, 3) % 12).unwrap();
            until("calls come", async || {
                self.parties
                    .iter()
                    .map(|party| party.service.calls())
                    .sum::<usize>()
                    >= calls
            })
            .await;
            let fault = dice(self.seed, n, 4) % 5;
            eprintln!("world: after {calls} calls fault {fault}");
            match fault {
                0 => {
                    first.kill9();
                    first.restart().await;
                }
                1 => {
                    second.kill9();
                    second.restart().await;
                }
                // Nobody serves for a moment.
                2 => {
                    first.kill9();
                    second.kill9();
                    first.restart().await;
                    second.restart().await;
                }
                // In the midst of whatever they say to the database.
                3 => proxy.cut(),
                _ => {
                    proxy.cut();
                    second.kill9();
                    second.restart().await;
                }
            }
        }
    }

    /// What its log says of a receiver.
    async fn seen(&self, party: &Party) -> Seen {
        party.log.flush().await;
        let mut seen = Seen::default();
        let mut keys: HashMap<String, String> = HashMap::new();
        let mut told = Vec::new();
        for entry in log::read(party.log.path()) {
            match entry {
                Entry::Called {
                    effect_key, key, ..
                } => {
                    keys.insert(effect_key, key.clone());
                    *seen.called.entry(key).or_default() += 1;
                }
                Entry::Applied { key, .. } => *seen.applied.entry(key).or_default() += 1,
                Entry::Told {
                    effect_key,
                    said,
                    applied,
                    ..
                } => told.push((effect_key, said, applied)),
                _ => {}
            }
        }
        for (effect_key, said, applied) in told {
            if let Some(key) = keys
                .get(&effect_key)
                .filter(|_| said == "absent" && applied)
            {
                *seen.lies.entry(key.clone()).or_default() += 1;
            }
        }
        assert_eq!(
            keys.values().collect::<BTreeSet<_>>().len(),
            keys.len(),
            "one effect key per event of {}",
            party.kind.name
        );
        seen
    }

    /// What was acknowledged, of the senders' log.
    async fn acknowledged(&self) -> BTreeSet<String> {
        self.sent.flush().await;
        let told = log::read(self.sent.path()).filter_map(|entry| match entry {
            Entry::Answered {
                key, status: 200, ..
            } => Some(key),
            _ => None,
        });
        told.collect()
    }
}

/// By event key, how often.
#[derive(Debug, Default)]
struct Seen {
    called: BTreeMap<String, usize>,
    applied: BTreeMap<String, usize>,
    /// "absent", said of what was there.
    lies: BTreeMap<String, usize>,
}

impl Seen {
    fn applied(&self, key: &str) -> usize {
        self.applied.get(key).copied().unwrap_or(0)
    }
}

/// Plays it and says what does not fit.
async fn played(seed: u64) -> Vec<String> {
    let world = World::new(seed).await;
    let (mut app, proxy) = world.start().await;
    let mut second = app.another_node().await;
    let clients = world.send([app.public, second.public]);
    world.fire(&mut app, &mut second, &proxy).await;
    clients.join_all().await;
    until("everything has ended or waits for a person", async || {
        app.db
            .count("delivery WHERE state <> 'uncertain' OR run_at < 'infinity'")
            .await
            == 0
    })
    .await;
    let sent = world.acknowledged().await;
    assert_eq!(sent.len(), KINDS.len() * EVENTS);
    let open = uncertain(&second).await;
    let mut wrong = Vec::new();
    let mut doubled = BTreeSet::new();
    for (place, party) in world.parties.iter().enumerate() {
        let seen = world.seen(party).await;
        let name = party.kind.name;
        for n in 0..EVENTS {
            let key = format!("evt_{}", place * 100 + n);
            let times = seen.applied(&key);
            let called = seen.called.get(&key).copied().unwrap_or(0);
            let lies = seen.lies.get(&key).copied().unwrap_or(0);
            let fits = match party.kind.promise {
                Promise::Once => times == 1 && !open.contains(&key),
                Promise::AtMostOnce => {
                    called <= 1 && times <= 1 && (open.contains(&key) || times == 1)
                }
                Promise::AtMostOnceAsItSays => {
                    let outcome = second.until_outcome(SOURCE, &key, name).await;
                    called <= 1 && times <= 1 && (times == 1 || outcome["decided_by"] == "probe")
                }
                Promise::OnceAndPerLie => {
                    if times > 1 {
                        doubled.insert(name);
                    }
                    (1..=1 + lies).contains(&times)
                }
            };
            if !fits {
                wrong.push(format!(
                    "{name} {key}: applied {times} times, called {called} times, {lies} lies, open: {}",
                    open.contains(&key)
                ));
            }
        }
    }
    // It was the receivers' words that made the difference.
    if doubled != BTreeSet::from(["lies", "stale"]) {
        wrong.push(format!("doubled by a false \"absent\": {doubled:?}"));
    }
    // Those whose answer was lost, at the least.
    if open.len() < 2 * 4 * EVENTS / 7 {
        wrong.push(format!("only {open:?} are open"));
    }
    app.db.verify().await;
    wrong
}

async fn play(seed: u64) {
    let wrong = played(seed).await;
    assert!(
        wrong.is_empty(),
        "{}\nagain with: WORLD_SEED={seed} cargo test --test it -- judge::world::every",
        wrong.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_receiver_has_what_it_can_have_under_random_kills_and_cuts() {
    let seed = seed("WORLD_SEED");
    eprintln!("world: WORLD_SEED={seed}");
    play(seed).await;
}

/// Again and again, with the seeds that follow `WORLD_SEED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: just world"]
async fn again_and_again() {
    let first = seed("WORLD_SEED");
    let runs = std::env::var("WORLD_RUNS").map_or(20, |runs| runs.parse().unwrap());
    for seed in first..first + runs {
        eprintln!("world: WORLD_SEED={seed}");
        play(seed).await;
    }
}
