-- event_state: the derived state of one event; NULL when nothing was ever fanned out.
-- Run by store::query::timeline. The rule is that of event_list.
-- $1 event_id
SELECT CASE WHEN EXISTS (SELECT FROM oncehook.delivery WHERE event_id = $1 AND state = 'uncertain') THEN 'uncertain'
            WHEN EXISTS (SELECT FROM oncehook.delivery WHERE event_id = $1 AND state = 'held') THEN 'held'
            WHEN EXISTS (SELECT FROM oncehook.delivery WHERE event_id = $1) THEN 'pending'
            WHEN bool_or(last.result = 'dead') THEN 'dead'
            WHEN bool_or(last.result = 'failed') THEN 'failed'
            WHEN count(*) > 0 THEN 'succeeded' END AS state
  FROM (SELECT DISTINCT ON (handler_id) result FROM oncehook.outcome WHERE event_id = $1 ORDER BY handler_id, run DESC) last
