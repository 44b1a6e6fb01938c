-- rejected_cap: keeps the newest rows only, so that a flood of refusals cannot fill the disk.
-- Run by store::keeper::cap_rejected.
-- $1 rows to keep
DELETE FROM oncehook.rejected WHERE id <= (SELECT max(id) FROM oncehook.rejected) - $1
