-- timeline_audit: what operators did to this event.
-- $1 subject (the event id)
SELECT at, actor, action, reason, after ->> 'as' AS resolved_as, after ->> 'bulk' AS bulk FROM oncehook.audit WHERE subject = $1 ORDER BY id LIMIT 100
