-- handler_retire: ends a handler; its unfinished deliveries are cancelled by an operator.
-- Run by store::registry::retire_handler, with the audit row in the same transaction.
-- $1 handler id  $2 reason  $3 $4 $5 status, headers and body that the clients of an operation are answered; NULL if it is none
-- Rows: deliveries cancelled. A delivery that is being settled is waited for: it ends either way,
-- once.
-- Locked first in the order in which settle locks: heads and what has no lane in key order, then what
-- waits behind a head, lane by lane. Two orders would deadlock.
WITH locked AS MATERIALIZED (
  SELECT event_id FROM oncehook.delivery WHERE handler_id = $1
   ORDER BY state = 'blocked', CASE WHEN state = 'blocked' THEN lane END, CASE WHEN state = 'blocked' THEN lane_seq END, event_id
     FOR UPDATE
), ended AS (
  DELETE FROM oncehook.delivery d USING locked l WHERE d.event_id = l.event_id AND d.handler_id = $1
  RETURNING d.event_id, d.handler_id, d.run, d.generation, d.failures, d.losses, d.not_yet, d.state
), answered AS (
  INSERT INTO oncehook.response (event_id, handler_id, run, status, headers, body, expires_at)
  SELECT e.event_id, e.handler_id, e.run, $3::int, $4::jsonb, $5::bytea, clock_timestamp() + h.keep_response
    FROM ended e JOIN oncehook.handler h ON h.id = e.handler_id WHERE $3 IS NOT NULL
)
INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, attempts, finished_at)
SELECT event_id, handler_id, run, generation, 'cancelled', 'operator', 'handler retired: ' || $2 || CASE WHEN state = 'uncertain' THEN ' (the result of its call was not known)' ELSE '' END,
       failures + losses + not_yet, clock_timestamp()
  FROM ended ORDER BY event_id
