-- token_any: whether there is a token, which is when every request needs one.
-- Revoked ones count: whoever revokes the last one does not open the door.
-- Rows: 1.
SELECT EXISTS (SELECT FROM oncehook.token)
