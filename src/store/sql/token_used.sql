-- token_used: keeps when a token was last used, at most once a minute, whichever node asks.
-- $1 id
-- Rows: 1 kept; 0 it was less than a minute ago.
UPDATE oncehook.token SET last_used_at = now()
 WHERE id = $1 AND coalesce(last_used_at < now() - interval '1 minute', true)
