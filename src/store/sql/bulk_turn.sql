-- bulk_turn: one start of a bulk replay at a time, from here to its COMMIT.
-- Run by store::bulk, before bulk_overlap, so that of two at the same moment the second sees the first.
SELECT pg_advisory_xact_lock(hashtext('oncehook.bulk_replay'))
