-- response_purge: empties answers whose horizon has passed. Readers go by the horizon, not by this.
-- Run by store::response::purge, in steps, until none is left.
-- $1 at most so many
-- Rows: answers emptied. Index response_DAY_expires_at_idx, then response_DAY_pkey.
UPDATE oncehook.response r SET headers = NULL, body = NULL, purged_at = clock_timestamp()
  FROM (SELECT event_id, handler_id, run FROM oncehook.response
         WHERE expires_at <= clock_timestamp() AND purged_at IS NULL
         LIMIT $1 FOR UPDATE SKIP LOCKED) due
 WHERE r.event_id = due.event_id AND r.handler_id = due.handler_id AND r.run = due.run AND r.purged_at IS NULL
