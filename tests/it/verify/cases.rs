//! The kinds of damage that a verification must find, over the database of [`super::story`].

use oncehook::store::verify::CheckState;
use oncehook::store::verify::CheckState::{Broken, Note, Unfinished, Warning};

/// An event's id by its key, and a handler's by its name, as [`Damage::sql`] writes them.
const EVENT: &str = "(SELECT id FROM oncehook.event WHERE split_part(key, ':', 1) = 'evt_";
const HANDLER: &str = "(SELECT id FROM oncehook.handler WHERE name = '";

/// One kind of damage.
pub(super) struct Damage {
    /// Checks that find it: the first one holds what follows.
    pub(super) checks: &'static [(&'static str, CheckState)],
    /// How it is done. `@plain` is the event of key `evt_plain`, `#ledger` a handler's id, `~` the
    /// table's schema.
    sql: &'static str,
    /// The first example: source and key, handler and run, and a part of what it says.
    pub(super) key: Option<&'static str>,
    pub(super) handler: Option<&'static str>,
    pub(super) run: Option<i32>,
    pub(super) detail: &'static str,
}

/// Damage and the checks that find it, warnings included.
const fn damage(
    checks: &'static [(&'static str, CheckState)],
    sql: &'static str,
    detail: &'static str,
) -> Damage {
    Damage {
        checks,
        sql,
        key: None,
        handler: None,
        run: None,
        detail,
    }
}

/// What is uncertain was given up by a person.
macro_rules! given_up {
    () => {
        "WITH ended AS (
           INSERT INTO ~outcome (event_id, handler_id, run, generation, result, decided_by, reason, attempts, finished_at)
           SELECT event_id, handler_id, run, generation, 'dead', 'operator', 'x', failures, now() FROM ~delivery
            WHERE event_id = @unsure AND handler_id = #mail
           RETURNING event_id, handler_id
         ), told AS (
           INSERT INTO ~audit (actor, action, subject, reason, after)
           SELECT 'test', 'event.resolve', event_id::text, 'x', jsonb_build_object('handler', 'mail', 'run', 1, 'as', 'dead') FROM ended
         )"
    };
}

/// The audit of its replay.
macro_rules! replayed {
    () => {
        "INSERT INTO ~audit (actor, action, subject, reason, after)
         SELECT 'test', 'event.replay', event_id::text, 'x', jsonb_build_object('handler', 'mail', 'run', 2)"
    };
}

impl Damage {
    const fn event(self, key: &'static str) -> Self {
        Self {
            key: Some(key),
            ..self
        }
    }

    const fn of(self, handler: &'static str, run: i32) -> Self {
        Self {
            handler: Some(handler),
            run: Some(run),
            ..self
        }
    }

    pub(super) fn sql(&self) -> String {
        let mut sql = self.sql.to_owned();
        for key in [
            "plain", "twice", "again", "no", "dead", "late", "old", "mode", "live", "leased",
            "unsure",
        ] {
            sql = sql.replace(&format!("@{key}"), &format!("{EVENT}{key}')"));
        }
        for handler in ["ledger", "mail", "late", "old"] {
            sql = sql.replace(&format!("#{handler}"), &format!("{HANDLER}{handler}')"));
        }
        sql.replace('~', "oncehook.")
    }
}

/// An event row and its fate are spread over tables; each case hurts one relation between them.
pub(super) const CASES: &[Damage] = &[
    // Keys, events, requests.
    damage(
        &[("key_event", Broken)],
        "INSERT INTO ~event_key SELECT source_id, 'evt_lost', ~uuid7(now()), raw_digest, NULL, 0, now() FROM ~event_key WHERE key = 'evt_plain'",
        "its event is not",
    )
    .event("evt_lost"),
    damage(
        &[("key_event", Broken)],
        "INSERT INTO ~event_key SELECT source_id, 'evt_alias', event_id, raw_digest, NULL, 0, now() FROM ~event_key WHERE key = 'evt_plain'",
        "another key",
    )
    .event("evt_alias"),
    damage(
        &[("event_key", Broken)],
        "DELETE FROM ~event_key WHERE key = 'evt_plain'",
        "its key is not stored",
    )
    .event("evt_plain"),
    damage(
        &[("event_key", Broken)],
        "INSERT INTO ~event SELECT ~uuid7(now()), request_id, item_offset, item_length, source_id, key, provider_id, type, entity, account, mode,
                occurred_at, correlation_id, state, state_reason, routes FROM ~event WHERE id = @mode",
        "its key names event",
    )
    .event("evt_mode:mode=unknown"),
    damage(
        &[("event_request", Broken)],
        "DELETE FROM ~request WHERE id = (SELECT request_id FROM ~event WHERE id = @plain)",
        "is not stored",
    )
    .event("evt_plain"),
    damage(
        &[("event_request", Broken)],
        "UPDATE ~event SET item_length = item_length + 1 WHERE id = @plain",
        "lie outside the body",
    )
    .event("evt_plain"),
    damage(
        &[("event_request", Broken)],
        "UPDATE ~request SET source_id = 99 WHERE id = (SELECT request_id FROM ~event WHERE id = @plain)",
        "another source",
    )
    .event("evt_plain"),
    damage(
        &[("request_event", Broken)],
        "INSERT INTO ~request SELECT ~uuid7(now()), received_at, source_id, body, headers, method, path, query, peer, secret_label
           FROM ~request LIMIT 1",
        "no event of request",
    ),
    damage(
        &[("event_state", Broken)],
        "UPDATE ~event SET state = 'ignored' WHERE id = @plain",
        "it is ignored, and has routes",
    )
    .event("evt_plain"),
    damage(
        &[("event_state", Broken)],
        "UPDATE ~event SET state = NULL WHERE id = @mode",
        "no state, and no routes",
    )
    .event("evt_mode:mode=unknown"),
    damage(
        &[("event_state", Broken), ("delivery_event", Broken)],
        "INSERT INTO ~delivery (event_id, handler_id) VALUES (@mode, #ledger)",
        "it is ignored, and was handled",
    )
    .event("evt_mode:mode=unknown"),
    damage(
        &[("event_state", Broken), ("route", Broken)],
        "UPDATE ~event SET routes = routes || 99 WHERE id = @plain",
        "a handler that is not registered",
    )
    .event("evt_plain"),
    damage(
        &[("event_state", Broken), ("event_key", Broken), ("event_request", Broken), ("key_event", Broken)],
        "UPDATE ~event SET source_id = 99 WHERE id = @plain",
        "its source is not registered",
    )
    .event("evt_plain"),
    damage(
        &[("conflict", Broken)],
        "UPDATE ~conflict SET key = 'evt_nobody'",
        "a key that is not stored",
    )
    .event("evt_nobody"),
    damage(
        &[("conflict", Broken)],
        "UPDATE ~conflict SET event_id = @plain",
        "another event than its key",
    )
    .event("evt_twice"),
    damage(
        &[("conflict", Broken)],
        "UPDATE ~conflict SET first_digest = sha256('x')",
        "first digest",
    )
    .event("evt_twice"),
    damage(
        &[("conflict", Broken), ("conflict_digest", Broken)],
        "UPDATE ~conflict SET raw_digest = first_digest",
        "the content of its key",
    )
    .event("evt_twice"),
    damage(
        &[("receipt_event", Broken)],
        "INSERT INTO ~receipt VALUES (gen_random_uuid(), now(), 7, 'a')",
        "copies: 7",
    ),
    // What is to do.
    damage(
        &[("route", Broken)],
        "DELETE FROM ~delivery WHERE event_id = @live AND handler_id = #mail",
        "neither a delivery nor an outcome",
    )
    .event("evt_live"),
    damage(
        &[("route", Broken)],
        "DELETE FROM ~outcome WHERE event_id = @plain AND handler_id = #ledger",
        "neither a delivery nor an outcome",
    )
    .event("evt_plain"),
    damage(
        &[("delivery_event", Broken)],
        "INSERT INTO ~delivery (event_id, handler_id) VALUES (~uuid7(now()), #ledger)",
        "its event is not stored",
    )
    .of("ledger", 1),
    damage(
        &[("delivery_event", Broken)],
        "INSERT INTO ~delivery (event_id, handler_id) VALUES (@plain, 99)",
        "handler 99 is not registered",
    )
    .event("evt_plain")
    .of("#99", 1),
    damage(
        &[("delivery_event", Broken)],
        "INSERT INTO ~delivery (event_id, handler_id) VALUES (@plain, #late)",
        "not in the event's routes",
    )
    .event("evt_plain")
    .of("late", 1),
    damage(
        &[("delivery_run", Broken)],
        "INSERT INTO ~delivery (event_id, handler_id) VALUES (@plain, #ledger)",
        "run 1 has an outcome",
    )
    .event("evt_plain")
    .of("ledger", 1),
    damage(
        &[("delivery_run", Broken), ("replay_audit", Broken)],
        "UPDATE ~delivery SET run = 3 WHERE event_id = @no",
        "the last outcome is of run 1",
    )
    .event("evt_no")
    .of("ledger", 3),
    damage(
        &[("delivery_run", Broken)],
        "UPDATE ~delivery SET generation = 1 WHERE event_id = @no",
        "generation 1 after generation 0, failed",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET lease_token = NULL WHERE event_id = @leased",
        "the token says otherwise",
    )
    .event("evt_leased")
    .of("ledger", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET lease_until = NULL WHERE event_id = @leased",
        "lease_until says otherwise",
    )
    .event("evt_leased")
    .of("ledger", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET leased_at = now() WHERE event_id = @live AND handler_id = #mail",
        "ready, and leased_at says otherwise",
    )
    .event("evt_live")
    .of("mail", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET run_at = 'infinity' WHERE event_id = @no",
        "never due",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET suspect = true WHERE event_id = @no",
        "suspect, and no lease was lost",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET losses_alone = 1 WHERE event_id = @no",
        "of these alone: 1",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("lease_token", Broken)],
        "UPDATE ~delivery SET state = 'leased', first_try_at = now(), leased_at = now(), lease_until = now() + interval '1 h',
                lease_token = (SELECT lease_token FROM ~delivery WHERE event_id = @leased AND state = 'leased')
          WHERE event_id = @leased AND handler_id = #mail",
        "in 2 places",
    )
    .event("evt_leased"),
    damage(
        &[("lease_token", Broken), ("attempt_count", Broken)],
        "INSERT INTO ~attempt SELECT * FROM ~attempt WHERE event_id = @dead AND run = 2",
        "in 2 places",
    )
    .event("evt_dead")
    .of("ledger", 2),
    damage(
        &[("lease_expired", Warning)],
        "UPDATE ~delivery SET lease_until = now() - interval '6 min' WHERE event_id = @leased AND state = 'leased'",
        "its lease ended 36",
    )
    .event("evt_leased")
    .of("ledger", 1),
    damage(
        &[("lane_head", Broken)],
        "UPDATE ~delivery SET state = 'blocked', lane = 'pi_1', lane_seq = 1, run_at = now() - interval '16 min' WHERE event_id = @no",
        "lane pi_1 has no head that can run",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("lane_head", Broken)],
        "UPDATE ~delivery SET state = CASE event_id WHEN @no THEN 'blocked' ELSE 'ready' END, lane = 'pi_1', lane_seq = 1, postponed = event_id <> @no,
                run_at = now() + CASE event_id WHEN @no THEN interval '-16 min' ELSE interval '1 h' END
          WHERE handler_id = #ledger AND event_id IN (@no, @live)",
        "lane pi_1 has no head that can run",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("emitted", Warning)],
        "INSERT INTO ~emitted (source_id, key, body, correlation_id, emitted_at) SELECT id, 'lost', '', gen_random_uuid(), now() - interval '16 min' FROM ~source",
        "emitted 96",
    )
    .event("lost"),
    damage(
        &[("latest", Broken)],
        "INSERT INTO ~latest SELECT id, 'pi_1', 'occurred_at', 7, @no FROM ~handler WHERE name = 'ledger'",
        "version 7 of pi_1 was applied",
    )
    .event("evt_no"),
    damage(
        &[("overdue", Warning)],
        "UPDATE ~delivery SET run_at = now() - interval '16 min' WHERE event_id = @no",
        "due for 96",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("paused", Note)],
        "UPDATE ~handler SET paused_at = now(), paused_by = 'eva', paused_reason = 'restore' WHERE name = 'ledger'",
        "by eva: restore",
    ),
    damage(
        &[("caps", Broken)],
        "DELETE FROM ~handler_cap WHERE handler_id = #ledger",
        "no row in handler_cap",
    ),
    damage(
        &[("retired", Warning)],
        "UPDATE ~handler SET retired_at = now() WHERE name = 'ledger'; DELETE FROM ~delivery WHERE event_id <> @no AND handler_id = #ledger;
         UPDATE ~event SET routes = ARRAY[#mail] WHERE id IN (@live, @leased, @unsure)",
        "its handler was retired",
    )
    .event("evt_no")
    .of("ledger", 2),
    // What was done.
    damage(
        &[("outcome_event", Broken)],
        "INSERT INTO ~outcome VALUES (~uuid7(now()), #ledger, 1, 0, 'succeeded', 'handler', NULL, NULL, 1, now())",
        "its event is not stored",
    )
    .of("ledger", 1),
    damage(
        &[("outcome_event", Broken)],
        "INSERT INTO ~outcome VALUES (@plain, 99, 1, 0, 'succeeded', 'handler', NULL, NULL, 1, now())",
        "handler 99 is not registered",
    )
    .event("evt_plain")
    .of("#99", 1),
    damage(
        &[("outcome_event", Broken)],
        "DELETE FROM ~audit WHERE action = 'event.replay.missing'",
        "not in the event's routes",
    )
    .event("evt_late")
    .of("late", 1),
    damage(
        &[("outcome_run", Broken)],
        "DELETE FROM ~outcome WHERE event_id = @dead AND run = 1",
        "the run before it has no outcome",
    )
    .event("evt_dead")
    .of("ledger", 2),
    damage(
        &[("outcome_run", Broken)],
        "UPDATE ~outcome SET generation = 0 WHERE event_id = @twice AND run = 2",
        "generation 0 after generation 0, succeeded",
    )
    .event("evt_twice")
    .of("mail", 2),
    damage(
        &[("outcome_run", Broken), ("attempt_count", Broken)],
        "UPDATE ~outcome SET run = 0 WHERE event_id = @again",
        "runs begin with 1",
    )
    .event("evt_again")
    .of("ledger", 0),
    damage(
        &[("outcome_decided", Broken), ("attempt_count", Broken)],
        "UPDATE ~outcome SET decided_by = 'operator' WHERE event_id = @plain AND handler_id = #mail",
        "succeeded, decided by operator",
    )
    .event("evt_plain")
    .of("mail", 1),
    damage(
        &[("outcome_decided", Broken), ("attempt_count", Broken)],
        "UPDATE ~outcome SET decided_by = 'probe' WHERE event_id = @plain AND handler_id = #mail",
        "decided by probe, and no call was unknown",
    )
    .event("evt_plain")
    .of("mail", 1),
    damage(
        &[("outcome_decided", Broken), ("attempt_count", Broken)],
        "UPDATE ~outcome SET decided_by = 'webhook' WHERE event_id = @plain AND handler_id = #mail",
        "decided by webhook, and no event is kept that says so",
    )
    .event("evt_plain")
    .of("mail", 1),
    damage(
        &[("effect", Broken)],
        "INSERT INTO ~effect VALUES (decode(repeat('ab', 20), 'hex'), gen_random_uuid(), #mail, 0);
         UPDATE ~effect SET event_id = ~uuid7(now())",
        "an effect key of an event that is not stored",
    ),
    damage(
        &[("attempt_event", Broken)],
        "UPDATE ~attempt SET told_by = ~uuid7(now()) WHERE verdict = 'evidence'",
        "told by an event that is not stored",
    )
    .event("evt_again")
    .of("ledger", 1),
    damage(
        &[("outcome_decided", Broken)],
        "ALTER TABLE ~outcome ALTER decided_by DROP NOT NULL; UPDATE ~outcome SET decided_by = NULL WHERE event_id = @no",
        "nobody decided it",
    )
    .event("evt_no")
    .of("ledger", 1),
    damage(
        &[("outcome_decided", Broken)],
        "DELETE FROM ~audit WHERE action = 'handler.retire'",
        "has no handlers retire",
    )
    .event("evt_old")
    .of("old", 1),
    damage(
        &[("replay_audit", Broken)],
        "DELETE FROM ~audit WHERE action = 'event.replay' AND subject = @dead::text",
        "the audit has no such row",
    )
    .event("evt_dead")
    .of("ledger", 2),
    damage(
        &[("replay_audit", Broken)],
        "DELETE FROM ~audit WHERE action = 'event.replay' AND subject = @no::text",
        "the audit has no such row",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("audit_run", Broken)],
        "DELETE FROM ~outcome WHERE event_id = @dead AND run = 2",
        "in the audit as event.replay, and neither",
    )
    .event("evt_dead")
    .of("ledger", 2),
    damage(
        &[("audit_run", Broken)],
        "INSERT INTO ~audit (actor, action, subject, after) VALUES ('x', 'event.resolve', @plain::text, '{\"handler\": \"mail\", \"run\": 7}')",
        "in the audit as event.resolve, and neither",
    )
    .event("evt_plain")
    .of("mail", 7),
    damage(
        &[("bulk", Broken)],
        "INSERT INTO ~bulk_replay (results, since, until, force, verify_bytes, rate, reason, actor, started_at, replayed, state, ended_at)
         VALUES ('{dead}', now(), now(), false, false, 1, 'x', 'eva', now(), 3, 'complete', now());
         INSERT INTO ~audit (actor, action, subject, after) SELECT 'eva', 'replay.bulk.end', id::text, '{}' FROM ~bulk_replay",
        "counts 3 new runs; the audit has 0, of 0",
    ),
    damage(
        &[("bulk", Broken)],
        "INSERT INTO ~bulk_replay (results, since, until, force, verify_bytes, rate, reason, actor, started_at, replayed, state, ended_at)
         VALUES ('{dead}', now(), now(), false, false, 1, 'x', 'eva', now(), 2, 'complete', now());
         INSERT INTO ~audit (actor, action, subject, after) SELECT 'eva', 'replay.bulk.end', id::text, '{}' FROM ~bulk_replay;
         INSERT INTO ~audit (actor, action, subject, after) SELECT 'eva', 'x', 'y', jsonb_build_object('handler', 'mail', 'bulk', id) FROM ~bulk_replay, generate_series(1, 2)",
        "counts 2 new runs; the audit has 2, of 1",
    ),
    damage(
        &[("bulk", Broken)],
        "INSERT INTO ~bulk_replay (results, since, until, force, verify_bytes, rate, reason, actor, started_at, state, ended_at)
         VALUES ('{dead}', now(), now(), false, false, 1, 'x', 'eva', now(), 'complete', now())",
        "is complete, and the audit does not say so",
    ),
    damage(
        &[("bulk", Broken)],
        "INSERT INTO ~audit (actor, action, subject, after) VALUES ('eva', 'x', 'y', '{\"bulk\": 99}')",
        "the audit names bulk 99, which is not there",
    ),
    damage(
        &[("bulk_open", Note)],
        "INSERT INTO ~bulk_replay (results, since, until, force, verify_bytes, rate, reason, actor, started_at, state)
         VALUES ('{dead}', now(), now(), false, false, 1, 'x', 'eva', now(), 'stopped')",
        "stopped, started",
    ),
    damage(
        &[("attempt_event", Broken)],
        "INSERT INTO ~attempt VALUES (~uuid7(now()), #ledger, 1, gen_random_uuid(), now(), now(), 'retry', 'x')",
        "of an event that is not stored",
    )
    .of("ledger", 1),
    damage(
        &[("attempt_event", Broken)],
        "INSERT INTO ~attempt VALUES (@plain, 99, 1, gen_random_uuid(), now(), now(), 'retry', 'x')",
        "handler 99, which is not registered",
    )
    .event("evt_plain")
    .of("#99", 1),
    damage(
        &[("attempt_count", Broken)],
        "DELETE FROM ~attempt WHERE event_id = @dead AND run = 1",
        "dead, tries: 1, of which failed or lost and recorded: 0",
    )
    .event("evt_dead")
    .of("ledger", 1),
    damage(
        &[("attempt_count", Broken)],
        "UPDATE ~delivery SET failures = 2 WHERE event_id = @no",
        "failures: 2, losses: 0, not yet: 0, recorded: 0, 0 and 0",
    )
    .event("evt_no")
    .of("ledger", 2),
    damage(
        &[("digest", Broken)],
        "UPDATE ~request SET body = overlay(body PLACING '\\x7e'::bytea FROM 5) WHERE id = (SELECT request_id FROM ~event WHERE id = @plain)",
        "another SHA-256 than its key",
    )
    .event("evt_plain"),
    damage(
        &[("conflict_digest", Broken)],
        "UPDATE ~conflict SET body = 'x'",
        "another SHA-256 than it says",
    )
    .event("evt_twice"),
    // Calls whose result is unknown.
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET uncertain_at = NULL WHERE event_id = @unsure",
        "uncertain, and uncertain_at says otherwise",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET call_token = NULL WHERE event_id = @unsure",
        "uncertain, and call_token says otherwise",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET in_flight_until = NULL WHERE event_id = @unsure",
        "uncertain, and no call was made",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("delivery_shape", Broken), ("attempt_count", Broken)],
        "UPDATE ~delivery SET failures = 0 WHERE event_id = @unsure",
        "uncertain, and no try is counted",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("delivery_shape", Broken)],
        "UPDATE ~delivery SET probes = 1 WHERE event_id = @live AND handler_id = #mail",
        "ready, and asked about",
    )
    .event("evt_live")
    .of("mail", 1),
    damage(
        &[("uncertain", Warning)],
        "UPDATE ~delivery SET run_at = now() - interval '1 hour' WHERE event_id = @unsure AND handler_id = #mail",
        "due to be asked about for 3600 s",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("uncertain", Warning)],
        "INSERT INTO ~attempt (event_id, handler_id, run, ended_at, verdict, answer)
         SELECT event_id, handler_id, run, now() - interval '1 hour', 'evidence', 'succeeded' FROM ~delivery
          WHERE event_id = @unsure AND handler_id = #mail",
        "its late answer is kept",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("resend", Broken)],
        "UPDATE ~delivery SET state = 'leased', uncertain_at = NULL, call_token = NULL, lease_token = gen_random_uuid(),
                leased_at = now(), lease_until = now() + interval '1 hour', run_at = now() WHERE event_id = @unsure AND handler_id = #mail",
        "sent again before",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("resend", Broken), ("attempt_count", Broken)],
        "INSERT INTO ~attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict)
         SELECT event_id, handler_id, run, gen_random_uuid(), now(), now() + interval '1 s', 'retry' FROM ~delivery
          WHERE event_id = @unsure AND handler_id = #mail",
        "sent again before",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("resend", Broken)],
        "WITH ended AS (DELETE FROM ~delivery WHERE event_id = @unsure AND handler_id = #mail RETURNING *)
         INSERT INTO ~outcome (event_id, handler_id, run, generation, result, decided_by, attempts, finished_at)
         SELECT event_id, handler_id, run, generation, 'succeeded', 'handler', 2, now() FROM ended",
        "sent again before",
    )
    .event("evt_unsure")
    .of("mail", 1),
    // The same by a run that was opened too early.
    damage(
        &[("resend", Broken)],
        concat!(
            given_up!(),
            ", opened AS (UPDATE ~delivery d SET run = 2, state = 'leased', uncertain_at = NULL, call_token = NULL, failures = 0,
                    lease_token = gen_random_uuid(), leased_at = now(), lease_until = now() + interval '1 hour', run_at = now()
               FROM ended WHERE d.event_id = ended.event_id AND d.handler_id = ended.handler_id RETURNING d.event_id)
             ", replayed!(), " FROM opened"
        ),
        "sent again before",
    )
    .event("evt_unsure")
    .of("mail", 1),
    damage(
        &[("resend", Broken)],
        concat!(
            given_up!(),
            ", gone AS (DELETE FROM ~delivery d USING ended WHERE d.event_id = ended.event_id AND d.handler_id = ended.handler_id RETURNING d.*),
             again AS (INSERT INTO ~outcome (event_id, handler_id, run, generation, result, decided_by, attempts, finished_at, lease_token)
             SELECT event_id, handler_id, 2, generation, 'succeeded', 'handler', 1, now(), gen_random_uuid() FROM gone RETURNING event_id)
             ", replayed!(), " FROM again"
        ),
        "sent again before",
    )
    .event("evt_unsure")
    .of("mail", 1),
    // Operations: `late` is made one of its source.
    damage(
        &[("response", Broken)],
        "UPDATE ~handler SET operation_of = (SELECT source_id FROM ~event WHERE id = @late) WHERE id = #late",
        "its answer is not stored",
    )
    .event("evt_late")
    .of("late", 1),
    damage(
        &[("response", Broken)],
        "INSERT INTO ~response (event_id, handler_id, run, status, headers, body) SELECT @plain, #mail, 7, 200, '[]', ''",
        "its run has no outcome",
    )
    .event("evt_plain")
    .of("mail", 7),
    damage(
        &[("outcome_run", Broken)],
        "WITH made AS (UPDATE ~handler SET operation_of = (SELECT source_id FROM ~event WHERE id = @late) WHERE id = #late),
              told AS (INSERT INTO ~response (event_id, handler_id, run, status, headers, body) SELECT @late, #late, 1, 200, '[]', '')
         UPDATE ~event_key SET generation = 1 WHERE event_id = @late",
        "generation 0 after none, and its key has 1",
    )
    .event("evt_late")
    .of("late", 1),
    // What it stands on.
    damage(
        &[("guards", Broken)],
        "ALTER TABLE ~delivery DROP CONSTRAINT delivery_pkey",
        "delivery has no valid primary key",
    ),
    damage(
        &[("guards", Broken)],
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '~event_key_07_pkey'::regclass",
        "event_key_07 has no valid primary key",
    ),
    damage(
        &[("guards", Broken)],
        "ALTER TABLE ~audit DISABLE TRIGGER append_only",
        "the audit can be changed",
    ),
    damage(
        &[("partitions", Warning)],
        "DO $$ BEGIN EXECUTE 'DROP TABLE ~attempt_' || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD'); END $$",
        "is missing",
    ),
    damage(
        &[("partitions", Warning)],
        "DO $$ BEGIN EXECUTE 'ALTER TABLE ~request DETACH PARTITION ~request_' || to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD'); END $$",
        "is not attached",
    ),
    damage(
        &[("schema", Warning)],
        "INSERT INTO ~schema_history (version, name) VALUES (999, 'of_tomorrow')",
        "migration 999 is of a newer program",
    ),
    damage(
        &[("schema", Unfinished)],
        "DELETE FROM ~schema_history WHERE version = 1",
        "migration 1 is not applied",
    ),
];
