-- replay_missing: a page of readable events received since a time that the handler never had; operations go to
-- their own handler only.
-- Run by store::missing, behind replay_missing_reach, which filters by the handler's patterns.
-- $1 handler_id  $2 received since  $3 after this event id  $4 limit  $5 the last event to read: the reach, or NULL
-- Index event_DAY_pkey (pruned by the id's time); delivery_pkey and outcome_DAY_pkey once per event. Each OFFSET 0 keeps
-- a look-up one: planned as a join, all that is open and every outcome were read for one page.
SELECT e.id, s.name, s.first_name, e.key, e.type
  FROM oncehook.event e JOIN oncehook.source s ON s.id = e.source_id
 WHERE e.id >= oncehook.uuid7_floor($2) AND e.id > $3 AND e.id <= coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   AND s.recipe <> 'operation'
   AND (e.state IS NULL OR e.state = 'unrecognized')
   AND NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = $1 OFFSET 0)
   AND NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id AND o.handler_id = $1 OFFSET 0)
 ORDER BY e.id LIMIT $4
