//! The receiver of calls. At `/hooks` it honours effect keys; at `/doubt` it ignores them, loses its
//! first answer about each event, and can be asked. At `/order` and `/ask` it does operations: there it answers what
//! was made, and at `/ask` loses its first answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::node::free_address;
use crate::support::{Received, Receiver, Reply};

#[derive(Debug, Default)]
struct Books {
    /// Calls at `/hooks`.
    hooks: Vec<Received>,
    /// Of each event that came to `/doubt`: the effect keys of its calls, and how often it was applied.
    doubt: BTreeMap<String, (Vec<String>, usize)>,
    /// Effect keys that were applied.
    applied: Vec<String>,
}

/// Its books; clones have the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Service(Arc<Mutex<Books>>);

impl Service {
    pub(super) async fn start() -> (Self, Receiver) {
        let service = Self::default();
        let books = service.clone();
        let receiver = Receiver::answering(free_address(), move |call| {
            Box::pin(std::future::ready(books.answer(call)))
        });
        (service, receiver.await)
    }

    fn answer(&self, call: Received) -> Reply {
        let mut books = self.0.lock().unwrap();
        if let Some(asked) = call.path.strip_prefix("/by-key/") {
            let state = if books.applied.iter().any(|key| key == asked) {
                "applied"
            } else {
                "absent"
            };
            // What it answered the operation that this key was of.
            let made = json!({ "status": 201, "body": { "made": asked } });
            let answer = json!({ "state": state, "response": made });
            return Reply::status(200).body(&answer.to_string());
        }
        if call.path == "/hooks" {
            books.hooks.push(call);
            return Reply::status(200);
        }
        let effect_key = call.header("idempotency-key").unwrap_or("none").to_owned();
        let event: Value = serde_json::from_slice(&call.body).unwrap();
        let text = |member: &str| event[member].as_str().unwrap().to_owned();
        let (keys, applied) = books.doubt.entry(text("id")).or_default();
        keys.push(effect_key.clone());
        let first = keys.len() == 1;
        if call.path == "/order" || call.path == "/ask" {
            // At `/order` it honours the key.
            if first || call.path == "/ask" {
                *applied += 1;
                books.applied.push(effect_key.clone());
            }
            if first && call.path == "/ask" {
                return Reply::cut();
            }
            let made = json!({ "made": effect_key }).to_string();
            return Reply::status(201)
                .header("Content-Type", "application/json")
                .body(&made);
        }
        if first && ["doubt.lost", "open.lost"].contains(&text("type").as_str()) {
            return Reply::cut();
        }
        *applied += 1;
        books.applied.push(effect_key);
        if first {
            Reply::cut()
        } else {
            Reply::status(200)
        }
    }

    /// Calls at `/hooks` so far.
    pub(super) fn calls(&self) -> Vec<Received> {
        self.0.lock().unwrap().hooks.clone()
    }

    pub(super) fn has_applied(&self, key: &str) -> bool {
        let books = self.0.lock().unwrap();
        books
            .doubt
            .get(key)
            .is_some_and(|(_, applied)| *applied > 0)
    }

    /// What is wrong with the calls for an event at `/doubt`: it must have been applied once, under one
    /// effect key.
    pub(super) fn wrong(&self, key: &str) -> Option<String> {
        let books = self.0.lock().unwrap();
        let (mut keys, applied) = books.doubt.get(key).cloned().unwrap_or_default();
        keys.dedup();
        (keys.len() != 1 || applied != 1).then(|| {
            format!("{key}: applied {applied} times under the effect keys {keys:?}, expected once")
        })
    }
}
