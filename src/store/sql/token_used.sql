-- token_used: keeps when a token was last used, at most once a minute, whichever node asks.
-- A row that somebody holds is left alone: the next second asks again, and no connection waits.
-- $1 id
-- Rows: 1 kept; 0 it was less than a minute ago, or is held.
UPDATE oncehook.token SET last_used_at = now()
 WHERE id = (SELECT id FROM oncehook.token WHERE id = $1 AND coalesce(last_used_at < now() - interval '1 minute', true)
                FOR UPDATE SKIP LOCKED)
