-- verify_schema: the migrations that were applied.
-- Run by store::verify, before everything else.
SELECT version FROM oncehook.schema_history
