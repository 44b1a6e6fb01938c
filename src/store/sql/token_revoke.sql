-- token_revoke: ends a token for good.
-- Run by store::token::revoke_token, with the audit row in the same transaction.
-- $1 id  $2 who
-- Rows: 1, its name; 0 it is revoked already, or is not known.
UPDATE oncehook.token SET revoked_at = now(), revoked_by = $2
 WHERE id = $1 AND revoked_at IS NULL
RETURNING name
