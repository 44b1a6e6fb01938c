-- emitted_stored: emitted events leave in the transaction that stores them.
-- Run by store::ingest::take_emitted, in the ingest transaction.
-- $1 ids
-- Rows: as many as given; fewer means that another node has stored them, and the caller rolls back.
DELETE FROM oncehook.emitted WHERE id = ANY ($1::bigint[])
