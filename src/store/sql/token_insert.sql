-- token_insert: a new token of a client.
-- Run by store::token::create_token, with the audit row in the same transaction.
-- $1 name  $2 roles  $3 hash of the secret  $4 who  $5 seconds that it lasts, or NULL for ever
-- Rows: 1, its public id and when it ends.
INSERT INTO oncehook.token (name, roles, hash, created_by, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::bigint * interval '1 second')
RETURNING id, expires_at
