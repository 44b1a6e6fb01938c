-- digest_rule_register: gives a list of volatile members its number in an operation.
-- Run by store::operation::register, under the registry lock.
-- $1 source id  $2 JSON Pointers, sorted
-- Rows: 1 made; 0 it has one.
INSERT INTO oncehook.digest_rule (source_id, id, volatile)
SELECT $1, coalesce(max(id), 0) + 1, $2::text[] FROM oncehook.digest_rule WHERE source_id = $1
ON CONFLICT (source_id, volatile) DO NOTHING
