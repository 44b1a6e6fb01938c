//! The `settle` kind: an event that says how a call ended.
//!
//! What it says is kept under the lock of the call's delivery, in the transaction that ends the event's own. The
//! delivery then ends as by any late answer: [`reconcile`](super::super::reconcile) is the one that does it.

use std::time::Instant;

use uuid::Uuid;

use crate::domain::late::{Fate, Reading, Said, Silent, Stands, Word, fate};
use crate::domain::{DecidedBy, EffectKey, Verdict};
use crate::store::StoreError;
use crate::store::delivery::Lease;
use crate::store::effects::{self, Called, Told};
use crate::store::handling::{self, Part};
use crate::store::transaction::Transaction;
use crate::store::uncertain::{self, Live};
use crate::telemetry::{clean, clean_resource};

use super::super::{ActiveHandler, Context};
use super::transactional::{BUDGET, Ran, RunError};

/// Settles the calls of another handler.
#[derive(Debug, Clone)]
pub struct Settle {
    /// Its name: an `http` handler with `on_unknown` probe or hold, or an `external` one.
    pub of: String,
    /// Where the events say which call they are about, and what they say.
    pub reading: Reading,
}

/// One event of a batch that says something.
struct Named<'l> {
    at: usize,
    lease: &'l Lease,
    said: Said,
    called: Called,
}

pub(super) async fn run(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    settle: &Settle,
    leases: &[&Lease],
) -> Result<Vec<Ran>, RunError> {
    let began = Instant::now();
    transaction.plan_by_index().await?;
    let active = context.registry.current();
    let of = active.handlers.values().find(|h| h.spec.name == settle.of);
    let Some(of) = of else {
        let error = format!("handler {} is not known on this node", settle.of);
        let unknown = |_| {
            Ran::of(Verdict::Retry {
                after: None,
                error: error.clone(),
            })
        };
        return Ok(leases.iter().map(unknown).collect());
    };
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let Part {
        mut payloads,
        read: there,
    } = handling::payloads_within(transaction, &events).await?;
    let mut ran: Vec<Ran> = leases.iter().map(|_| Ran::NotRun).collect();
    let mut read = Vec::with_capacity(there);
    // What is not in the part that was read is not run yet.
    for (at, lease) in leases.iter().enumerate().take(there) {
        let said = match (&lease.event, payloads.remove(&lease.event_id)) {
            (Some(_), Some(payload)) => settle.reading.read(&payload.body).map_err(silent),
            _ => Err(Verdict::payload_expired()),
        };
        match said {
            Ok(said) => read.push((at, *lease, said)),
            Err(verdict) => set(&mut ran, at, verdict),
        }
    }
    let keys: Vec<&EffectKey> = read.iter().map(|(_, _, said)| &said.effect_key).collect();
    let known = effects::find(transaction, &keys).await?;
    let mut words = Vec::with_capacity(read.len());
    for (at, lease, said) in read {
        match known.get(&said.effect_key.bytes()) {
            Some(called) if called.handler_id == of.id => words.push(Named {
                at,
                lease,
                said,
                called: called.clone(),
            }),
            Some(_) => set(
                &mut ran,
                at,
                Verdict::Skip {
                    reason: format!("it is about a call of another handler than {}", settle.of),
                },
            ),
            None => set(&mut ran, at, unknown(handler, lease)),
        }
    }
    // One order for all: two batches that are about the same deliveries wait for one another.
    words.sort_by_key(|word| (word.called.event_id, word.called.handler_id));
    for (index, word) in words.iter().enumerate() {
        if index > 0 && began.elapsed() > BUDGET {
            break;
        }
        let verdict = one(context, transaction, handler, settle, word).await?;
        set(&mut ran, word.at, verdict);
    }
    Ok(ran)
}

fn set(ran: &mut [Ran], at: usize, verdict: Verdict) {
    if let Some(slot) = ran.get_mut(at) {
        *slot = Ran::of(verdict);
    }
}

fn silent(why: Silent) -> Verdict {
    let reason = why.to_string();
    match why {
        Silent::NotJson => Verdict::Permanent { error: reason },
        Silent::NoKey | Silent::OtherKey => Verdict::Skip { reason },
    }
}

/// An effect key that nobody knows: of another installation, or of a call that was made by a node that keeps none.
/// One is looked for again for a while, since a database that came back may be behind.
fn unknown(handler: &ActiveHandler, lease: &Lease) -> Verdict {
    let reason = "the effect key that it names is not known here".to_owned();
    let (tries, since) = (
        lease.progress.not_yet.saturating_add(1),
        lease.progress.since_not_yet,
    );
    match handler.spec.policy.not_yet.delay(tries, since, None, 0.0) {
        Some(_) => Verdict::NotYet {
            after: None,
            reason,
        },
        None => Verdict::Skip { reason },
    }
}

/// How the run stands that an event is about.
struct Standing {
    stands: Stands,
    run: i16,
    only_call: bool,
    /// The lease of its call, if one is in question.
    call: Option<Uuid>,
}

async fn one(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    settle: &Settle,
    word: &Named<'_>,
) -> Result<Verdict, StoreError> {
    let called = &word.called;
    let mut reserved = false;
    let standing = loop {
        let live = uncertain::look(transaction, called.event_id, called.handler_id).await?;
        let live = live.filter(|_| !reserved);
        let standing = match &live {
            Some(live) if live.generation == called.generation => {
                open(transaction, called, live).await?
            }
            _ => match ended(transaction, word).await? {
                Some(ended) => ended,
                None => {
                    return Ok(Verdict::Skip {
                        reason: format!(
                            "nothing is known any more of {} at {}",
                            called.event, settle.of
                        ),
                    });
                }
            },
        };
        let contradicts = decided(settle, &standing) == Fate::Contradicts;
        // No run may be opened between the look and what is kept.
        if reserved || live.is_some() || !contradicts {
            break standing;
        }
        reserved = effects::reserve(transaction, called).await?;
    };
    let verdict = keep(context, transaction, handler, settle, word, &standing).await?;
    if reserved {
        effects::free(transaction, called).await?;
    }
    Ok(verdict)
}

fn decided(settle: &Settle, standing: &Standing) -> Fate {
    fate(settle.reading.word, standing.stands, standing.only_call)
}

/// The run is live, and its row locked.
async fn open(
    transaction: &Transaction<'_>,
    called: &Called,
    live: &Live,
) -> Result<Standing, StoreError> {
    let stands = match live.state.as_str() {
        "leased" => Stands::Leased,
        "uncertain" => Stands::Uncertain,
        "held" => Stands::Held,
        _ => Stands::Waiting,
    };
    let tries = effects::tries(transaction, called, live.run).await?;
    Ok(Standing {
        stands,
        run: live.run,
        // That of a lease is not on record yet.
        only_call: tries == i64::from(stands == Stands::Uncertain),
        call: live.call_token.or(live.lease_token),
    })
}

async fn ended(
    transaction: &Transaction<'_>,
    word: &Named<'_>,
) -> Result<Option<Standing>, StoreError> {
    let found = effects::ended(transaction, &word.called).await?;
    Ok(found.map(|ended| {
        let by_event = ended.decided_by == DecidedBy::Webhook.as_str();
        let other = match (&ended.resource, resource(&word.said.resource)) {
            (Some(one), Some(other)) => *one != other,
            _ => false,
        };
        Standing {
            stands: Stands::Ended {
                ending: ended.ending,
                of_other_resource: by_event && other,
            },
            run: ended.run,
            only_call: false,
            call: None,
        }
    }))
}

fn resource(text: &Option<String>) -> Option<String> {
    text.as_deref()
        .map(|text| clean_resource(text).into_owned())
}

/// Keeps what is said and tells what became of it.
async fn keep(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    settle: &Settle,
    word: &Named<'_>,
    standing: &Standing,
) -> Result<Verdict, StoreError> {
    let called = &word.called;
    let fate = decided(settle, standing);
    let about = format!(
        "{}, handler {}, run {}",
        called.event, settle.of, standing.run
    );
    if fate == Fate::Known {
        return Ok(Verdict::Skip {
            reason: cleaned(&format!("known already: {about}")),
        });
    }
    let said = settle.reading.word;
    let source = word.lease.event.as_ref().and_then(|event| {
        let (source, _) = context.registry.identify(word.lease, event, handler)?;
        Some(format!(
            "event {} of {source} says {}",
            event.key,
            said.as_str()
        ))
    });
    let text = cleaned(&source.unwrap_or_else(|| format!("an event says {}", said.as_str())));
    let decides = matches!(fate, Fate::Decides | Fate::Waits { decides: true });
    let (made, external) = (
        resource(&word.said.resource),
        resource(&word.said.external_id),
    );
    let told = Told {
        run: standing.run,
        call: standing.call.filter(|_| decides && said == Word::Failed),
        text: &text,
        word: said,
        resource: made.as_deref(),
        external_id: external.as_deref(),
        by: word.lease.event_id,
    };
    effects::told(transaction, called, &told).await?;
    if standing.stands == Stands::Uncertain && decides {
        uncertain::wake_one(
            transaction,
            (called.event_id, called.handler_id, standing.run),
        )
        .await?;
    }
    Ok(match fate {
        Fate::Decides | Fate::Known => Verdict::Done {
            resource: Some(about),
        },
        Fate::Waits { .. } => waits(handler, word.lease, about),
        Fate::Kept => Verdict::Skip {
            reason: cleaned(&format!(
                "kept for whoever decides, it does not decide itself: {about}"
            )),
        },
        Fate::Contradicts => Verdict::Failed {
            reason: cleaned(&format!(
                "it says {}, and the outcome is another: {about}",
                said.as_str()
            )),
        },
    })
}

/// What is under way may say otherwise; when its time is spent, what is kept decides if that is lost.
fn waits(handler: &ActiveHandler, lease: &Lease, about: String) -> Verdict {
    let (tries, since) = (
        lease.progress.not_yet.saturating_add(1),
        lease.progress.since_not_yet,
    );
    match handler.spec.policy.not_yet.delay(tries, since, None, 0.0) {
        Some(_) => Verdict::NotYet {
            after: None,
            reason: cleaned(&format!("kept as evidence, its call is under way: {about}")),
        },
        None => Verdict::Done {
            resource: Some(about),
        },
    }
}

fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}
