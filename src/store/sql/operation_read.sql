-- operation_read: operations by their keys or by their ids, as one snapshot has them.
-- Run by store::operation.
-- $1 source_ids  $2 keys  $3 event_ids  $4 whether with the answers' bytes
-- Rows: one per operation found, with its position (from 1), the ids behind the keys.
-- Index event_key_NN_pkey, event_DAY_pkey, delivery_pkey, outcome_DAY_pkey, attempt_DAY_event_id_idx, response_DAY_pkey,
-- a probe each; every LIMIT keeps a look-up below its join.
-- `o`: the outcome that its client is told: of the first run that ended for good, with an answer of the business or, by a
-- late answer (`late_at`) to a call of it, with success; else that of the last run. `for_good` tells which.
-- `gone`: by the database's clock, whether or not the keeper has emptied it. The answers of an intent last no longer
-- than its key names it. `unanswered`: its run has ended and no answer was written.
SELECT q.no::int AS no, e.id, s.name AS operation, e.key, e.correlation_id,
       CASE WHEN k.event_id = e.id THEN k.first_seen ELSE r.received_at END AS created_at,
       CASE WHEN k.event_id = e.id THEN k.expires_at ELSE k.first_seen END AS expires_at,
       d.run AS live_run, d.state, d.tries, d.next_check_at,
       ceil(extract(epoch FROM d.next_check_at - clock_timestamp()))::float8 AS next_check_s,
       o.run, o.result, o.decided_by, o.reason, o.attempts, coalesce(o.late_at, o.finished_at) AS finished_at,
       o.resource, o.external_id, o.late_at, coalesce(o.for_good, false) AS for_good,
       kept.status::int AS status, kept.headers, kept.body, coalesce(kept.gone, false) AS gone,
       $4 AND o.run IS NOT NULL AND kept.status IS NULL AS unanswered,
       greatest(d.changed_at, o.finished_at, o.late_at, a.ended_at) AS updated_at
  FROM (SELECT u.no, k.event_id FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u(source_id, key, no)
         CROSS JOIN LATERAL (SELECT event_id FROM oncehook.event_key WHERE source_id = u.source_id AND key = u.key LIMIT 1) k
         UNION ALL
        SELECT cardinality($1::int[]) + u.no, u.event_id FROM unnest($3::uuid[]) WITH ORDINALITY AS u(event_id, no)) q
 CROSS JOIN LATERAL (SELECT id, source_id, key, correlation_id, request_id FROM oncehook.event WHERE id = q.event_id LIMIT 1) e
 CROSS JOIN LATERAL (SELECT s.name, h.id AS handler_id, h.keep_response
                       FROM oncehook.source s JOIN oncehook.handler h ON h.operation_of = s.id
                      WHERE s.id = e.source_id LIMIT 1) s
  LEFT JOIN LATERAL (SELECT event_id, first_seen, expires_at FROM oncehook.event_key
                      WHERE source_id = e.source_id AND key = e.key LIMIT 1) k ON true
  LEFT JOIN LATERAL (SELECT received_at FROM oncehook.request WHERE id = e.request_id LIMIT 1) r ON true
  LEFT JOIN LATERAL (SELECT run, state, (failures + losses + not_yet)::int AS tries,
                            CASE WHEN state = 'leased' THEN lease_until
                                 WHEN state IN ('ready', 'uncertain') AND run_at < 'infinity' THEN run_at END AS next_check_at,
                            greatest(leased_at, uncertain_at) AS changed_at
                       FROM oncehook.delivery WHERE event_id = e.id AND handler_id = s.handler_id LIMIT 1) d ON true
  LEFT JOIN LATERAL (SELECT p.run, CASE WHEN late.ended_at IS NULL THEN p.result ELSE 'succeeded' END AS result,
                            CASE WHEN late.ended_at IS NULL THEN p.decided_by ELSE 'handler' END AS decided_by,
                            CASE WHEN late.ended_at IS NULL THEN p.reason END AS reason, p.attempts, p.finished_at,
                            coalesce(late.resource, p.resource) AS resource, coalesce(late.external_id, p.external_id) AS external_id,
                            late.ended_at AS late_at, late.status, late.headers, late.body, late.emptied,
                            p.result IN ('succeeded', 'failed', 'skipped') OR late.ended_at IS NOT NULL AS for_good
                       FROM oncehook.outcome p
                       LEFT JOIN LATERAL (SELECT l.resource, l.external_id, l.ended_at, l.status, l.headers,
                                                 CASE WHEN $4 THEN l.body END AS body, l.status IS NOT NULL AND l.body IS NULL AS emptied
                                            FROM oncehook.attempt l
                                           WHERE l.event_id = p.event_id AND l.handler_id = p.handler_id AND l.run = p.run
                                             AND l.verdict = 'evidence' AND l.answer = 'succeeded'
                                           ORDER BY l.ended_at LIMIT 1) late ON p.result NOT IN ('succeeded', 'skipped')
                      WHERE p.event_id = e.id AND p.handler_id = s.handler_id
                      ORDER BY for_good DESC, CASE WHEN p.result IN ('succeeded', 'failed', 'skipped') OR late.ended_at IS NOT NULL THEN p.run ELSE -p.run END
                      LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT max(ended_at) AS ended_at FROM oncehook.attempt WHERE event_id = e.id) a ON true
  LEFT JOIN LATERAL (SELECT p.status, p.headers, CASE WHEN $4 THEN p.body END AS body,
                            p.purged_at IS NOT NULL OR coalesce(p.expires_at <= clock_timestamp(), false) AS gone
                       FROM oncehook.response p
                      WHERE o.late_at IS NULL AND p.event_id = e.id AND p.handler_id = s.handler_id AND p.run = o.run LIMIT 1) p ON true
  LEFT JOIN LATERAL (SELECT coalesce(o.status, p.status) AS status, coalesce(o.headers, p.headers) AS headers, coalesce(o.body, p.body) AS body,
                            coalesce(p.gone, o.emptied OR coalesce(o.late_at, o.finished_at) + s.keep_response <= clock_timestamp())
                              OR k.event_id IS DISTINCT FROM e.id AS gone) kept ON o.run IS NOT NULL
