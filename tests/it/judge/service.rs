//! `http` handlers against services of every manner: what the effect key gives, and what it does
//! not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::judge::trial::{CALL_LINES, CALL_TIMEOUT, SHIPPED, SQL_LINES};
use crate::support::judge::{Behaviour, Effects, Entry, Finding, Message, Trial, log};
use crate::support::{TestApp, until};

use super::until_done;

const SLOW: Behaviour = Behaviour::Slow(Duration::from_millis(600));

/// What the first calls of each event meet; later ones are good.
const MANNERS: [&[Behaviour]; 9] = [
    &[],
    &[SLOW],
    &[Behaviour::Cut],
    &[Behaviour::ErrorAfter],
    &[Behaviour::ErrorBefore],
    &[Behaviour::ErrorBefore, Behaviour::Cut, Behaviour::Cut],
    &[Behaviour::ErrorAfter, Behaviour::ErrorAfter],
    &[SLOW, Behaviour::ErrorBefore],
    &[Behaviour::ErrorBefore, SLOW, Behaviour::ErrorBefore],
];

fn manner(key: &str, calls_before: usize) -> Behaviour {
    let n: usize = key.strip_prefix("evt_").unwrap().parse().unwrap();
    let first = MANNERS[n % MANNERS.len()].get(calls_before);
    first.copied().unwrap_or(Behaviour::Good)
}

/// Calls as the service wrote them down: by event, its effect keys and how each went.
fn calls(trial: &Trial) -> BTreeMap<String, (BTreeSet<String>, Vec<String>)> {
    let mut calls: BTreeMap<_, (BTreeSet<String>, Vec<String>)> = BTreeMap::new();
    for entry in log::read(applied_log(trial)) {
        if let Entry::Called {
            effect_key,
            key,
            behaviour,
            ..
        } = entry
        {
            let (keys, went) = calls.entry(key).or_default();
            keys.insert(effect_key);
            went.push(behaviour);
        }
    }
    calls
}

fn applied_log(trial: &Trial) -> &std::path::Path {
    let mut handlers = trial.judge.handlers.iter();
    handlers
        .find_map(|handler| match &handler.effects {
            Effects::Applied { log, .. } => Some(log.as_path()),
            Effects::Booked => None,
        })
        .unwrap()
}

/// The errors kept of an event's calls, oldest first.
async fn errors(app: &TestApp, key: &str) -> Vec<String> {
    let timeline = app.timeline("shop", key).await.unwrap();
    let attempts = timeline["attempts"].as_array().unwrap();
    attempts
        .iter()
        .map(|attempt| attempt["error"].as_str().unwrap().to_owned())
        .collect()
}

fn error_of(behaviour: Behaviour) -> &'static str {
    match behaviour {
        Behaviour::Good => unreachable!("it is no error"),
        Behaviour::Slow(time) => {
            assert!(time > CALL_TIMEOUT);
            "no answer within 300ms: result unknown"
        }
        Behaviour::Cut => "the connection was cut before an answer: result unknown",
        Behaviour::ErrorAfter | Behaviour::ErrorBefore => "HTTP 500: result unknown",
    }
}

#[tokio::test]
async fn a_service_that_honours_the_key_applies_each_effect_once_in_every_manner() {
    let mut trial = Trial::new(true, manner).await;
    let app = trial.app(SQL_LINES, CALL_LINES).start().await;
    // The last round finds nobody there at first.
    let rounds = 3;
    for n in 0..rounds * MANNERS.len() {
        if n == (rounds - 1) * MANNERS.len() {
            until_done(&app.db).await;
            trial.service.refuse();
        }
        trial.put(&app, &Message::original(n, SHIPPED)).await;
    }
    until("each of the last round has been refused", async || {
        let refused = "SELECT count(DISTINCT event_id) FROM oncehook.attempt WHERE error LIKE 'not connected%'";
        app.db.one::<i64>(refused).await == i64::try_from(MANNERS.len()).unwrap()
    })
    .await;
    trial.service.listen().await;
    until_done(&app.db).await;
    trial.flush().await;
    trial
        .judge
        .acquit(
            &app.db.client().await,
            "cargo test --test it -- judge::service",
        )
        .await;

    // Nothing was guessed: every call that did not end well is kept, in order, with its kind.
    for (n, manner) in MANNERS.iter().enumerate() {
        let kept = errors(&app, &format!("evt_{n}")).await;
        let kept: Vec<&str> = kept
            .iter()
            .map(String::as_str)
            // A service that is still applying says so.
            .filter(|error| *error != "HTTP 409: not done")
            .collect();
        let expected: Vec<&str> = manner.iter().copied().map(error_of).collect();
        assert_eq!(kept, expected, "{manner:?}");
    }
    for (key, (effect_keys, went)) in calls(&trial) {
        assert_eq!(effect_keys.len(), 1, "{key}: {went:?}");
    }
}

#[tokio::test]
async fn a_service_that_ignores_the_key_applies_again_and_the_judge_sees_it() {
    let trial = Trial::new(false, manner).await;
    let app = trial.app(SQL_LINES, CALL_LINES).start().await;
    for n in 0..MANNERS.len() {
        trial.put(&app, &Message::original(n, SHIPPED)).await;
    }
    until_done(&app.db).await;
    until("the slow ones have applied", async || {
        trial.flush().await;
        let slow = calls(&trial)
            .values()
            .flat_map(|(_, went)| went)
            .filter(|went| went.starts_with("Slow"))
            .count();
        let effects = log::read(applied_log(&trial))
            .filter(|entry| matches!(entry, Entry::Applied { .. }))
            .count();
        slow == 3
            && effects
                == MANNERS
                    .iter()
                    .map(|manner| applications(manner))
                    .sum::<usize>()
    })
    .await;

    // The limit: each call applies. All of an event's calls carry one key, so that it was the
    // service that could have known.
    let client = app.db.client().await;
    trial
        .judge
        .acquit(&client, "cargo test --test it -- judge::service")
        .await;
    let mut strict = trial.judge.clone();
    for handler in &mut strict.handlers {
        if let Effects::Applied { honours_key, .. } = &mut handler.effects {
            *honours_key = true;
        }
    }
    let twice: BTreeSet<Finding> = MANNERS
        .iter()
        .enumerate()
        .filter(|(_, manner)| applications(manner) > 1)
        .map(|(n, manner)| Finding::EffectTwice {
            key: format!("evt_{n}"),
            handler: "shipping".to_owned(),
            times: u32::try_from(applications(manner)).unwrap(),
        })
        .collect();
    assert_eq!(twice.len(), 7);
    assert_eq!(strict.findings(&client).await, twice);
}

/// How often a service that ignores the key applies.
fn applications(manner: &[Behaviour]) -> usize {
    let before = |behaviour: &&Behaviour| **behaviour == Behaviour::ErrorBefore;
    manner.len() - manner.iter().filter(before).count() + 1
}
