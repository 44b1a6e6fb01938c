-- delivery_suspect: a lease was lost; the delivery is claimed alone from now on.
-- Run by store::delivery::suspect, by the reaper and by a node that lost its connection.
-- $1 event_id  $2 handler_id  $3 lease_token  $4 losses_alone from now on
-- Rows: 1 ours; 0 somebody else has moved it meanwhile, nothing to do.
-- Index delivery_pkey.
UPDATE oncehook.delivery
   SET state = 'ready', suspect = true, losses_alone = $4, losses = least(losses + 1, 32767), run_at = clock_timestamp(),
       lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL
 WHERE event_id = $1 AND handler_id = $2 AND lease_token = $3
