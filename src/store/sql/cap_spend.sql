-- cap_spend: writes what is left of the rates after a claim.
-- Run by store::cap::claim, last in the claim's transaction, which holds the rows' locks.
-- $1 handler_ids  $2 tokens left  $3 the moments they stand for
-- Rows: one per handler.
UPDATE oncehook.handler_cap c SET tokens = q.tokens, refilled_at = q.at
  FROM unnest($1::int[], $2::float8[], $3::timestamptz[]) AS q(handler_id, tokens, at)
 WHERE c.handler_id = q.handler_id
