//! Calls whose result is not known: probed, held, decided by evidence or a person, never blindly
//! repeated.

mod again;
mod asked;
mod away;
mod begin;
mod changed;
mod counted;
mod decided;
mod evidence;
mod external;
mod kill;
mod late;
mod probe;
mod resource;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::crash::{ledger, timeline};
use crate::support::{
    AppBuilder, Gate, Node, Received, Receiver, Reply, TestDb, until, until_some,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What a payment service does with a call.
#[derive(Debug, Clone)]
enum Manner {
    /// Applies and answers 201.
    Good,
    /// Answers this, having applied or not.
    Says(Reply, Applies),
    /// Applies or not, and waits for the gate before it says 201.
    Holds(Gate, Applies),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applies {
    Yes,
    No,
}

/// What a payment service has seen.
#[derive(Debug, Default)]
struct Books {
    /// How often each effect key was applied: it does not honour them.
    applied: BTreeMap<String, u32>,
    /// Effect keys of the calls, in order.
    calls: Vec<String>,
    probes: Vec<Received>,
    next: VecDeque<Manner>,
    next_probes: VecDeque<Reply>,
}

/// A payment service that ignores effect keys but can be asked about them, at `/by-key/{effect_key}`.
struct Payments {
    receiver: Receiver,
    books: Arc<Mutex<Books>>,
}

impl Payments {
    async fn start() -> Self {
        let books = Arc::new(Mutex::new(Books::default()));
        let kept = Arc::clone(&books);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let receiver = Receiver::answering(any, move |request| {
            let reply = kept.lock().unwrap().answer(request);
            Box::pin(std::future::ready(reply))
        })
        .await;
        Self { receiver, books }
    }

    /// How the next calls go, one each; later ones are good.
    fn next(&self, manners: impl IntoIterator<Item = Manner>) {
        self.books.lock().unwrap().next.extend(manners);
    }

    /// What the next probes are told; later ones the truth.
    fn next_probes(&self, replies: impl IntoIterator<Item = Reply>) {
        self.books.lock().unwrap().next_probes.extend(replies);
    }

    fn calls(&self) -> Vec<String> {
        self.books.lock().unwrap().calls.clone()
    }

    fn probes(&self) -> Vec<Received> {
        self.books.lock().unwrap().probes.clone()
    }

    /// How often the effects were applied, one number per effect key.
    fn applied(&self) -> Vec<u32> {
        self.books
            .lock()
            .unwrap()
            .applied
            .values()
            .copied()
            .collect()
    }

    async fn until_calls(&self, count: usize) {
        until(&format!("{count} calls come"), async || {
            self.calls().len() >= count
        })
        .await;
    }

    async fn until_probes(&self, count: usize) {
        until(&format!("{count} probes come"), async || {
            self.probes().len() >= count
        })
        .await;
    }

    /// A node with handler `payout` that calls it, and further lines.
    fn app(&self, lines: &str) -> AppBuilder {
        self.called_by("payout", lines, ledger())
    }

    /// A handler that calls it, and further lines.
    fn called_by(&self, handler: &str, lines: &str, app: AppBuilder) -> AppBuilder {
        let lines = format!(
            "secrets = [{{ label = \"a\", value = {SECRET:?} }}]\n\
             retry = {{ for = \"1m\", first = \"10ms\", max = \"20ms\" }}\n{lines}"
        );
        app.http_handler(handler, &self.receiver.url("/pay"), &lines)
    }

    /// The same with a probe, asked at these times (such as `"100ms", "2s"`).
    fn probed(&self, after: &str, lines: &str) -> AppBuilder {
        self.app(&self.probe_lines(after, lines))
    }

    fn probe_lines(&self, after: &str, lines: &str) -> String {
        let url = self.receiver.url("/by-key/{effect_key}");
        format!("on_unknown = \"probe\"\nprobe = {{ url = {url:?}, after = [{after}] }}\n{lines}")
    }
}

impl Books {
    fn answer(&mut self, request: Received) -> Reply {
        let key = request.header("Idempotency-Key").unwrap().to_owned();
        if request.path.starts_with("/by-key/") {
            assert_eq!(request.path, format!("/by-key/{key}"));
            self.probes.push(request);
            let told = self.next_probes.pop_front();
            return told.unwrap_or_else(|| {
                if self.applied.contains_key(&key) {
                    says(r#"{"state":"applied","resource":"pay_7"}"#)
                } else {
                    says(r#"{"state":"absent"}"#)
                }
            });
        }
        let manner = self.next.pop_front().unwrap_or(Manner::Good);
        self.calls.push(key.clone());
        let (reply, applies) = match manner {
            Manner::Good => (Reply::status(201), Applies::Yes),
            Manner::Says(reply, applies) => (reply, applies),
            Manner::Holds(gate, applies) => (Reply::status(201).behind(&gate), applies),
        };
        if applies == Applies::Yes {
            *self.applied.entry(key).or_default() += 1;
        }
        reply
    }
}

/// A probe's answer.
fn says(body: &str) -> Reply {
    Reply::status(200).body(body)
}

/// The open delivery of an event.
async fn open(node: &Node, key: &str) -> Option<Value> {
    timeline(node, key).await["deliveries"].get(0).cloned()
}

/// Waits until the event's delivery is uncertain; returns it.
async fn until_uncertain(node: &Node, key: &str) -> Value {
    until_some(&format!("{key} is uncertain"), async || {
        open(node, key)
            .await
            .filter(|open| open["state"] == "uncertain")
    })
    .await
}

/// Waits until a person must decide.
async fn until_for_people(node: &Node, key: &str) -> Value {
    until_some(&format!("{key} waits for a person"), async || {
        let open = open(node, key).await?;
        (open["state"] == "uncertain" && open["run_at"].is_null()).then_some(open)
    })
    .await
}

/// No call is under way any more, as if the time had passed.
async fn land(db: &TestDb) {
    db.execute(
        "UPDATE oncehook.delivery SET in_flight_until = now() - interval '1 ms' WHERE state = 'uncertain';
         UPDATE oncehook.attempt SET in_flight_until = now() - interval '1 ms' WHERE in_flight_until > now()",
    )
    .await;
}

/// The next question is due, as if the time had passed.
async fn due(db: &TestDb) {
    db.execute(
        "UPDATE oncehook.delivery SET run_at = now() - interval '1 ms' WHERE state = 'uncertain'",
    )
    .await;
}

/// Verdict and text of an event's history, oldest first.
async fn history(node: &Node, key: &str) -> Vec<String> {
    let timeline = timeline(node, key).await;
    let attempts = timeline["attempts"].as_array().unwrap();
    let text = |attempt: &Value, member: &str| attempt[member].as_str().unwrap().to_owned();
    attempts
        .iter()
        .map(|a| format!("{}: {}", text(a, "verdict"), text(a, "error")))
        .collect()
}
