-- verify_delivery_shape: deliveries whose columns contradict each other.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. Reads the hot table once.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT d.event_id, d.handler_id, d.run::int AS run,
               CASE WHEN (d.state = 'leased') <> (d.lease_token IS NOT NULL) THEN d.state || ', and the token says otherwise'
                    WHEN (d.state = 'leased') <> (d.lease_until IS NOT NULL) THEN d.state || ', and lease_until says otherwise'
                    WHEN (d.state = 'leased') <> (d.leased_at IS NOT NULL) THEN d.state || ', and leased_at says otherwise'
                    WHEN d.state = 'leased' AND d.first_try_at IS NULL THEN 'leased, and never tried'
                    WHEN (d.state = 'uncertain') <> (d.uncertain_at IS NOT NULL) THEN d.state || ', and uncertain_at says otherwise'
                    WHEN (d.state = 'uncertain') <> (d.call_token IS NOT NULL) THEN d.state || ', and call_token says otherwise'
                    WHEN d.state = 'uncertain' AND d.in_flight_until IS NULL THEN 'uncertain, and no call was made'
                    WHEN d.state = 'uncertain' AND d.failures + d.losses < 1 THEN 'uncertain, and no try is counted'
                    WHEN d.state <> 'uncertain' AND d.probes <> 0 THEN d.state || ', and asked about'
                    WHEN d.run_at = 'infinity' AND d.state <> 'uncertain' THEN 'never due'
                    WHEN d.suspect AND d.losses < 1 THEN 'suspect, and no lease was lost'
                    WHEN d.losses_alone NOT BETWEEN 0 AND d.losses THEN format('losses: %s, of these alone: %s', d.losses, d.losses_alone)
                    WHEN (d.state = 'held') <> (d.state_reason IS NOT NULL) THEN d.state || ', and the reason says otherwise'
                    WHEN d.state = 'held' AND d.failures + d.losses + d.not_yet < 1 THEN 'held, and never tried'
                    WHEN (d.lane IS NULL) <> (d.lane_seq IS NULL) THEN 'a lane without a number, or a number without a lane'
                    WHEN d.state = 'blocked' AND d.lane IS NULL THEN 'blocked, and in no lane'
                    WHEN (d.not_yet > 0) <> (d.not_yet_since IS NOT NULL) THEN d.not_yet || ' times not yet, and the first of them says otherwise'
                    WHEN d.failures < 0 THEN 'failures: ' || d.failures
               END AS detail
          FROM oncehook.delivery d) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
