-- token_revoked: why token_revoke changed nothing.
-- $1 id
-- Rows: 1, its name and who revoked it; 0 it is not known.
SELECT name, revoked_by FROM oncehook.token WHERE id = $1
