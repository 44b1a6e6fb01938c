-- operation_register: says which source's operation a handler serves, and how long its answers are kept.
-- Run by store::operation::register, under the registry lock.
-- $1 handler id  $2 source id  $3 seconds that an answer is kept, NULL: as long as its key
-- Rows: 1 changed; 0 it is stored so already.
UPDATE oncehook.handler SET operation_of = $2, keep_response = make_interval(secs => $3::float8)
 WHERE id = $1 AND (operation_of, keep_response) IS DISTINCT FROM ($2, make_interval(secs => $3::float8))
