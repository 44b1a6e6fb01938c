//! The golden scenarios: what the outside does, and what must have become of it.

use std::time::Duration;

use super::lane::Fixture;
use super::outside::Outside;
use super::point::{Kill, Role, Spot};

/// A scenario on running nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scenario {
    /// A new event, its copy, a conflict, two items in one request, a forgery.
    Ingest,
    /// A batch of a `sql` handler, a try that fails and its retry, an `http` call.
    Dispatch,
    /// A lost lease: the reaper, a suspect that runs alone, an event that dies as poison.
    Reap,
    /// Two events of one lane, one after the other.
    Lane,
    /// A handler emits an event, and another handles it.
    Emit,
    /// Two calls without an answer: a probe finds one applied, the other absent and sent again.
    Doubt,
    /// The same where nobody can be asked: a person says what they were told.
    Resolve,
    /// A dead letter and a succeeded run, replayed by the API.
    Replay,
    /// Clients of operations: an intent, its retry, other content, a failure that is begun again, a key that is renewed.
    Submit,
    /// Operations carried out: in a transaction, by a call, by one whose answer is lost and that is asked about.
    Operate,
    /// `replay --missing` and `handlers retire`.
    Command,
    /// A node starts on a migrated database and serves.
    Start,
    /// `migrate` on an empty database.
    Migrate,
}

impl Scenario {
    pub(super) const ALL: [Self; 13] = [
        Self::Ingest,
        Self::Dispatch,
        Self::Reap,
        Self::Lane,
        Self::Emit,
        Self::Doubt,
        Self::Resolve,
        Self::Replay,
        Self::Submit,
        Self::Operate,
        Self::Command,
        Self::Start,
        Self::Migrate,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Dispatch => "dispatch",
            Self::Reap => "reap",
            Self::Lane => "lane",
            Self::Emit => "emit",
            Self::Doubt => "doubt",
            Self::Resolve => "resolve",
            Self::Replay => "replay",
            Self::Submit => "submit",
            Self::Operate => "operate",
            Self::Command => "command",
            Self::Start => "start",
            Self::Migrate => "migrate",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Whose messages are its crash points.
    pub(super) fn role(self) -> Role {
        match self {
            Self::Ingest | Self::Resolve | Self::Replay | Self::Submit => Role::Inbox,
            Self::Dispatch | Self::Reap | Self::Lane | Self::Emit | Self::Doubt | Self::Operate => {
                Role::Worker
            }
            Self::Command => Role::Command,
            Self::Start | Self::Migrate => Role::Starter,
        }
    }

    /// Whether it is about a process on its way up, see `start`.
    pub(super) fn is_a_start(self) -> bool {
        matches!(self, Self::Start | Self::Migrate)
    }

    /// Whether a message is a crash point here, and not already one of another scenario.
    pub(super) fn covers(self, spot: &Spot) -> bool {
        let Some(statement) = spot.name.strip_prefix(&format!("{} ", self.role())) else {
            return false;
        };
        let is = |first: &[&str]| first.iter().any(|first| statement.starts_with(first));
        let received = is(&[
            "begin before ingest_",
            "ingest_",
            "commit after ingest_",
            "noti",
        ]);
        let settles = statement.contains("delivery_lock")
            || is(&["delivery_run_sql", "commit after delivery_finish"]);
        match self {
            Self::Ingest | Self::Command => true,
            // Further claims depend on when a poll comes.
            Self::Dispatch => {
                (spot.occurrence <= 4 || !statement.contains("delivery_claim"))
                    && !statement.contains("uncertain_claim")
            }
            Self::Reap => {
                !is(&[
                    "delivery_claim ",
                    "set before delivery_claim",
                    "uncertain_claim",
                    "reset",
                ]) || settles
            }
            // What a lane adds to a dispatch, and what follows its promotion.
            Self::Lane => statement.contains("lane_promote"),
            Self::Emit => received || statement.contains("emitted_"),
            Self::Doubt => {
                statement.contains("uncertain") || is(&["attempt_", "commit after attempt_"])
            }
            // Its second replay differs in what it writes.
            Self::Replay => !received && (spot.occurrence == 1 || is(&["replay_arm", "commit"])),
            // What a webhook does not have, and the ends of what it has.
            Self::Submit => {
                !received
                    || statement.contains("ingest_renew")
                    || is(&["ingest_known", "commit after ingest_"])
            }
            Self::Operate => {
                statement.contains("response_insert")
                    || is(&[
                        "delivery_run_sql",
                        "delivery_finish",
                        "uncertain_finish",
                        "noti",
                    ])
            }
            Self::Resolve => {
                statement.contains("uncertain")
                    || is(&["delivery_lock_any", "audit_", "commit after audit_"])
            }
            Self::Start | Self::Migrate => !received && spot.occurrence <= 3,
        }
    }

    /// Whether its messages are those of a process from its begin.
    pub(super) fn is_of_a_process(self) -> bool {
        self.is_a_start() || self == Self::Command
    }

    /// What may be killed; a node that starts alone has no other.
    pub(super) fn kills(self) -> impl Iterator<Item = Kill> {
        let alone = self.is_a_start();
        Kill::ALL
            .into_iter()
            .filter(move |kill| !alone || *kill != Kill::Other)
    }

    /// Does it; returns when all that it expects has its outcome. Each step waits for the one
    /// before, so that messages come in the same order in every run.
    pub(super) async fn play(self, outside: &Outside) {
        match self {
            Self::Ingest => ingest(outside).await,
            Self::Dispatch => dispatch(outside).await,
            Self::Reap => reap(outside).await,
            Self::Lane => lane(outside).await,
            Self::Emit => emit(outside).await,
            Self::Doubt => doubt(outside).await,
            Self::Resolve => resolve(outside).await,
            Self::Replay => replay(outside).await,
            Self::Submit => submit(outside).await,
            Self::Operate => operate(outside).await,
            Self::Command => command(outside).await,
            Self::Start | Self::Migrate => {}
        }
    }
}

const DONE: &[&str] = &["succeeded"];

async fn ingest(outside: &Outside) {
    let key = outside.key("paid");
    outside.stripe(&key, "charge.succeeded", 5).await;
    outside.expect(&key, "ledger", DONE, 5);
    outside.settled().await;
    outside.stripe(&key, "charge.succeeded", 5).await;
    outside.stripe(&key, "charge.succeeded", 6).await;
    outside.log.lock().unwrap().conflicts.push(key);
    for key in outside.adyen(&["one", "two"], "AUTHORISATION", 7).await {
        outside.expect(&key, "ledger", DONE, 7);
    }
    outside.settled().await;
    // Its look at the lane is the inbox's.
    let laned = outside.key("laned");
    outside.stripe(&laned, "laned.one", 2).await;
    outside.expect(&laned, "laned", DONE, 2);
    outside.settled().await;
    outside.forged(&outside.key("forged")).await;
    // Recorded off the request's path, or, after a fault, not at all.
    let recorded =
        "SELECT count(*) > 0 FROM oncehook.rejected WHERE received_at > now() - interval '200 ms'";
    let recorded = outside.look.until(recorded, &[]);
    drop(tokio::time::timeout(Duration::from_millis(400), recorded).await);
}

async fn dispatch(outside: &Outside) {
    for key in outside.adyen(&["a", "b", "c"], "AUTHORISATION", 3).await {
        outside.expect(&key, "ledger", DONE, 3);
    }
    outside.settled().await;

    let moody = outside.key("moody");
    outside.stripe(&moody, "moody.one", 4).await;
    outside.expect(&moody, "moody", DONE, 4);
    outside.settled().await;

    let call = outside.key("call");
    outside.stripe(&call, "outside.one", 1).await;
    outside.expect(&call, "outside", DONE, 0);
    outside.settled().await;
}

async fn reap(outside: &Outside) {
    let orphan = outside.key("orphan");
    outside.stripe(&orphan, "orphan.one", 6).await;
    outside.expect(&orphan, "orphan", DONE, 6);
    outside.settled().await;

    let poison = outside.key("poison");
    outside.stripe(&poison, "poison.one", 8).await;
    outside.expect(&poison, "poison", &["dead"], 8);
    outside.settled().await;
}

async fn lane(outside: &Outside) {
    for (name, amount) in [("head", 3), ("next", 4)] {
        let key = outside.key(name);
        outside.stripe(&key, "laned.one", amount).await;
        outside.expect(&key, "laned", DONE, amount);
        outside.settled().await;
    }
}

async fn emit(outside: &Outside) {
    let cause = outside.key("cause");
    outside.stripe(&cause, "emitter.one", 5).await;
    outside.expect(&cause, "emitter", DONE, 5);
    outside.expect(&format!("{cause}.inner"), "echo", DONE, 5);
    outside.settled().await;
}

async fn doubt(outside: &Outside) {
    for (name, event_type) in [("applied", "doubt.applied"), ("absent", "doubt.lost")] {
        let key = outside.key(name);
        outside.stripe(&key, event_type, 1).await;
        outside.expect(&key, "doubt", DONE, 0);
        outside.landed(&key).await;
        outside.settled().await;
    }
}

async fn resolve(outside: &Outside) {
    for (name, event_type) in [("applied", "open.applied"), ("absent", "open.lost")] {
        let key = outside.key(name);
        outside.stripe(&key, event_type, 1).await;
        outside.expect(&key, "open", DONE, 0);
        outside.landed(&key).await;
        outside.decided(&key, "open").await;
    }
}

async fn replay(outside: &Outside) {
    let dead = outside.key("dead");
    outside.stripe(&dead, "broken.one", 8).await;
    outside.expect(&dead, "broken", &["dead"], 8);
    outside.settled().await;
    outside.replay(&dead, "broken", false).await;
    outside.expect(&dead, "broken", &["dead", "succeeded"], 8);
    outside.settled().await;

    let paid = outside.key("paid");
    outside.stripe(&paid, "charge.succeeded", 5).await;
    outside.expect(&paid, "ledger", DONE, 5);
    outside.settled().await;
    outside.replay(&paid, "ledger", true).await;
    outside.expect(&paid, "ledger", &["succeeded", "succeeded"], 5);
    outside.settled().await;
}

async fn submit(outside: &Outside) {
    let paid = outside.key("paid");
    outside.intent("pay", &paid, "pay", 5).await;
    outside.intent("pay", &paid, "pay", 5).await;
    outside.other_content("pay", &paid, 6).await;
    // Nothing can come late of a key whose time is over: an intent is one that was answered.
    outside.key_is_over(&paid).await;
    outside.intent("pay", &paid, "pay", 7).await;
    outside.intent("pay", &paid, "pay", 7).await;
    outside.expect_intents(&paid, "pay", DONE, &[5, 7]);

    let failed = outside.key("failed");
    outside.intent("pay", &failed, "fail", 3).await;
    outside.expect_intents(&failed, "pay", &["dead", "succeeded"], &[3]);
}

async fn operate(outside: &Outside) {
    for (operation, amount) in [("pay", 4), ("order", 0), ("ask", 0)] {
        let key = outside.key(operation);
        outside.intent(operation, &key, operation, amount).await;
        outside.intent(operation, &key, operation, amount).await;
        outside.expect_intents(&key, operation, DONE, &[amount]);
    }
}

async fn command(outside: &Outside) {
    // The inbox does not know handler `late`, so the event is stored without work.
    let late = outside.key("late");
    outside.stripe(&late, "late.one", 9).await;
    let missing = [
        "replay",
        "--missing",
        "--handler",
        "late",
        "--since",
        "1h",
        "--reason",
        "sweep",
    ];
    outside.command(&missing, &[]).await;
    outside.expect(&late, "late", DONE, 9);
    outside.settled().await;

    let old = outside.key("old");
    outside.look.execute(Fixture::OLD_HANDLER, &[&old]).await;
    outside
        .look
        .execute(Fixture::OLD_DELIVERY, &[&late, &old])
        .await;
    outside
        .command(
            &["handlers", "retire", &old, "--reason", "sweep"],
            &["is retired already"],
        )
        .await;
    outside.expect(&late, &old, &["cancelled"], 0);
    outside.settled().await;
}
