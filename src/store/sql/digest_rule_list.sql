-- digest_rule_list: every list of volatile members that an operation ever had.
-- Run by store::operation::rules: at start, and by ingest for a rule that this node does not know.
-- $1 source id
SELECT id, volatile FROM oncehook.digest_rule WHERE source_id = $1 ORDER BY id
