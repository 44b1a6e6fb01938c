-- emitted_left: emitted events that are still on their way.
-- Run by store::outbox::have_left_outbox, after a COMMIT whose reply was lost: who waits for the rows' locks waits for
-- its end.
-- $1 ids
-- Rows: those that were not stored. Index emitted_pkey.
SELECT id FROM oncehook.emitted WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
