-- bulk_lock: the fence of a page: locks its bulk replay if nobody has moved the cursor since it was read.
-- Run by store::bulk::page, first in the transaction that opens the page's runs.
-- $1 number  $2 $3 the cursor as it was claimed
-- Rows: 1; none when another node has done the page, or when it was stopped or ended.
SELECT id FROM oncehook.bulk_replay
 WHERE id = $1 AND after_event = $2 AND after_handler = $3 AND state = 'running' FOR UPDATE
