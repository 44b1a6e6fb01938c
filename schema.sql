-- The whole schema of oncehook, as people read it: tables in the order of a webhook's path.
--
-- Machines run src/store/migrations/; tests/it/schema.rs shows that migrating an empty database
-- gives exactly this one. Change both, or neither.
--
-- Rules that hold for every table:
-- - Everything lives in schema `oncehook`, beside whatever else the database holds. The migrations
--   keep their history in oncehook.schema_history, which is not shown here.
-- - No foreign keys: partitions are meant to leave as a whole, and a check against another table
--   would put its lock on the path of an acknowledgement.
-- - Texts that come from providers are COLLATE "C": two texts are equal when their bytes are.
-- - Times in rows, due times and ends of leases are by the database's clock, never by a node's.
-- - Ids of events and requests are UUIDv7 made by PostgreSQL from the transaction's time, so an id
--   also says in which day's partition its row lies. There is no default partition.
-- - Nothing here deletes events, keys or outcomes: retention is not there yet.

CREATE SCHEMA oncehook;

-- Ids ----------------------------------------------------------------------------------------------

-- A UUIDv7 of a moment: 48 bits of milliseconds, the rest random.
CREATE FUNCTION oncehook.uuid7(at timestamptz) RETURNS uuid
  LANGUAGE sql VOLATILE PARALLEL SAFE
  RETURN overlay(gen_random_uuid()::text PLACING
    overlay(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0) || '-7'
    FROM 1 FOR 15)::uuid;

-- The smallest UUIDv7 of a moment: a partition's bound, and "received since" in a query.
CREATE FUNCTION oncehook.uuid7_floor(at timestamptz) RETURNS uuid
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- Registry -----------------------------------------------------------------------------------------

-- A configured sender and its stable small id.
-- Written: at start and reload of a node, under an advisory lock. Renamed by `was`. Never deleted.
-- Invariant: `recipe` says how event keys are built. A node whose configuration builds them in
-- another way is refused at start, since the same event would be taken for a new one.
-- `first_name` is part of every effect key, so a rename changes none.
-- `paused_*`: set by `sources pause`, cleared by `sources resume`: since when its events are stored
-- and not handled, by whom, why.
CREATE TABLE oncehook.source (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  first_name text COLLATE "C" NOT NULL UNIQUE,
  former_names text[] COLLATE "C" NOT NULL DEFAULT '{}',
  recipe     text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  paused_at  timestamptz,
  paused_by  text,
  paused_reason text,
  CONSTRAINT source_paused_check CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

-- A configured handler and its stable small id.
-- Written: at start and reload. Renamed by `was`. `handlers retire` sets retired_at. Never deleted:
-- a retired name is never used again, because outcomes and effect keys refer to it.
-- `lane_by`: where its deliveries' lanes are read from, as configured last; a replay reads it.
-- `on_unknown`: retry, probe or hold, as configured last; who would have a receiver asked again reads it.
-- `paused_*`: as for a source, by `handlers pause` and `handlers resume`.
-- `operation_of`: the source whose operation it serves; each of its outcomes has a `response`, kept for
-- `keep_response` from then on; NULL: as long as the key.
CREATE TABLE oncehook.handler (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  first_name text COLLATE "C" NOT NULL UNIQUE,
  former_names text[] COLLATE "C" NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  retired_at timestamptz,
  lane_by    text COLLATE "C",
  on_unknown text COLLATE "C",
  paused_at  timestamptz,
  paused_by  text,
  paused_reason text,
  operation_of int,
  keep_response interval,
  CONSTRAINT handler_paused_check CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

-- What the nodes have taken of a handler's `rate`, and the lock that makes its caps exact.
-- Written: a row with its handler; updated by the claim of a capped handler, which holds the row's
-- lock from before it counts the leases until its COMMIT. Never deleted.
-- Apart from `handler`, whose rows are read and locked for other reasons.
-- Updated too with the give-back of leases under which nothing was begun, which have their tokens back.
-- Invariant: `tokens` is what was left at `refilled_at`, by the database's clock.
-- `given_back`: tokens that ever came back; whoever gives back sees by it what others did since the claim.
CREATE TABLE oncehook.handler_cap (
  handler_id  int PRIMARY KEY,
  tokens      float8 NOT NULL DEFAULT 0,
  refilled_at timestamptz NOT NULL DEFAULT 'epoch',
  given_back  float8 NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Receiving ----------------------------------------------------------------------------------------

-- The one place that decides whether an event is new.
-- Written: by the ingest transaction, INSERT .. ON CONFLICT DO NOTHING, keys in sorted order, so
-- that two batches never deadlock. Updated by the renewal of an operation's expired key only, under its
-- lock. Never deleted (keys are kept for ever until retention comes).
-- Invariant: (source_id, key) names at most one event, for any number of nodes and copies at once.
-- `canonical_digest` is over the comparable content under `digest_rule`; later copies are judged
-- under the rule stored here. NULL: only the raw bytes compare.
-- `expires_at`: of an operation, when its key may name another intent, which nothing live or uncertain
-- does; NULL: never. `generation`: the first of its deliveries' effect keys, raised by each renewal above
-- every one that the intents before had.
-- Apart from `event`, and by hash: a unique constraint over day partitions could not hold.
CREATE TABLE oncehook.event_key (
  source_id        int NOT NULL,
  key              text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 2048),
  event_id         uuid NOT NULL,
  raw_digest       bytea NOT NULL CHECK (octet_length(raw_digest) = 32),
  canonical_digest bytea CHECK (octet_length(canonical_digest) = 32),
  digest_rule      smallint NOT NULL,
  first_seen       timestamptz NOT NULL,
  generation       smallint NOT NULL DEFAULT 0,
  expires_at       timestamptz,
  PRIMARY KEY (source_id, key)
) PARTITION BY HASH (source_id, key);

-- event_key_00 .. event_key_15.
DO $$
BEGIN
  FOR n IN 0..15 LOOP
    EXECUTE format('CREATE TABLE oncehook.event_key_%s PARTITION OF oncehook.event_key FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
                   lpad(n::text, 2, '0'), n);
  END LOOP;
END $$;

-- Which members of an operation's body honest retries may differ in: numbered, so that a key is judged under the
-- rule that its first intent came under, whatever is configured since.
-- Written: at start and reload, under the registry lock, where the list has no number yet. Never changed.
-- `volatile`: JSON Pointers, sorted. The digest of rule n is over canonical JSON without them.
CREATE TABLE oncehook.digest_rule (
  source_id  int NOT NULL,
  id         smallint NOT NULL CHECK (id > 0),
  volatile   text[] COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (source_id, id),
  UNIQUE (source_id, volatile)
);

-- One HTTP request as received, of which at least one item was new.
-- Written: by the ingest transaction. Never updated. Leaves by partition, which nothing does yet.
-- Invariant: `body` is the bytes on the wire, from the first to the last. `headers` is a JSON array
-- of [name, value], allow-listed, never one whose value is a secret; bytea because a value may hold
-- anything. `query` has its values masked. `secret_label` names the secret that verified it.
CREATE TABLE oncehook.request (
  id             uuid PRIMARY KEY,
  received_at    timestamptz NOT NULL,
  source_id      int NOT NULL,
  body           bytea NOT NULL,
  headers        bytea NOT NULL,
  method         text COLLATE "C" NOT NULL,
  path           text COLLATE "C" NOT NULL,
  query          text COLLATE "C",
  peer           inet,
  secret_label   text COLLATE "C" NOT NULL
) PARTITION BY RANGE (id);

-- lz4 takes a third of pglz's time; a server built without it keeps its default.
DO $$
BEGIN
  ALTER TABLE oncehook.request ALTER body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  RAISE NOTICE 'this PostgreSQL was built without lz4: bodies use its default compression';
END $$;

-- One fact: an item of a request.
-- Written: by the ingest transaction, together with its key and its deliveries. Never updated.
-- Leaves by partition, which nothing does yet.
-- `request_id`, `item_offset`, `item_length`: where in request.body its bytes are.
-- `state` is what was known at insert: NULL (has deliveries), unreadable, ignored, unrecognized (no
-- handler took it). pending, dead, failed and succeeded are derived from deliveries and outcomes.
-- `routes`: ids of the handlers it was fanned out to when it came.
-- `correlation_id`: of the request that brought it; on every log line from there to the handler.
-- `caused_by`: the event whose handler emitted it.
CREATE TABLE oncehook.event (
  id           uuid PRIMARY KEY,
  request_id   uuid NOT NULL,
  item_offset  int NOT NULL,
  item_length  int NOT NULL,
  source_id    int NOT NULL,
  key          text COLLATE "C" NOT NULL,
  provider_id  text COLLATE "C",
  type         text COLLATE "C",
  entity       text COLLATE "C",
  account      text COLLATE "C",
  mode         text COLLATE "C",
  occurred_at  timestamptz,
  correlation_id uuid NOT NULL,
  state        text COLLATE "C" CHECK (state IN ('unreadable', 'ignored', 'unrecognized')),
  state_reason text COLLATE "C",
  routes       int[] NOT NULL,
  caused_by    uuid
) PARTITION BY RANGE (id);

-- Later copies of known events: one row per event, secret and batch.
-- Written: by the ingest transaction, also for a conflict. Never updated. Leaves by partition,
-- which nothing does yet.
-- Invariant: a duplicate's COMMIT writes too, so it waits for the standbys just as the original's
-- did and cannot be acknowledged ahead of it.
CREATE TABLE oncehook.receipt (
  event_id     uuid NOT NULL,
  received_at  timestamptz NOT NULL,
  count        int NOT NULL CHECK (count > 0),
  secret_label text COLLATE "C" NOT NULL
) PARTITION BY RANGE (received_at);
CREATE INDEX receipt_event ON oncehook.receipt (event_id);

-- An event emitted inside a transaction, on its way to be stored like any other.
-- Written: by oncehook.emit, in the transaction of a handler or of an application. Deleted by the
-- ingest transaction that stores it.
-- Invariant: it is here, or stored under its key, exactly if its transaction has committed.
-- `lease_until`: a node has taken it and is storing it; what was not stored then is taken again.
CREATE TABLE oncehook.emitted (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source_id      int NOT NULL,
  key            text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
  type           text COLLATE "C",
  entity         text COLLATE "C",
  occurred_at    timestamptz,
  body           bytea NOT NULL,
  caused_by      uuid,
  correlation_id uuid NOT NULL,
  emitted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until    timestamptz NOT NULL DEFAULT '-infinity'
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 1);

-- Handling -----------------------------------------------------------------------------------------

-- Order of the deliveries of a lane. Numbers are drawn before the commit, so a later one can be
-- visible first: a head is the lowest number that was committed when it was promoted.
CREATE SEQUENCE oncehook.lane_seq;

-- One unfinished (event, handler): the hot table, as small as the work that is open.
-- Written: by ingest (fan-out) and by replay. Updated by claim, retry, give-back, reap, probe and
-- resolve. Deleted by the statement that writes the outcome.
-- Invariants: a row exists while its run has no outcome. Every change of a leased row compares
-- `lease_token` and counts its rows: a stale token changes nothing. Only the database's clock
-- decides when a lease has ended.
-- `run` counts replays; `generation` is part of the effect key and grows by a forced replay only.
-- `failures`: recorded failed tries. `losses`: leases lost. `losses_alone`: of these, while it was
-- the only delivery executing in its process; they alone count towards the crash cap.
-- `suspect`: a lease was lost, so it is claimed alone from now on.
-- `lane`: deliveries of one handler with the same lane run one at a time; NULL waits for no other.
-- All but the first of a lane are `blocked`, and no claim looks at them. `lane_seq` is their order,
-- that in which they came. The first one, the head, is promoted by the statement after the one that
-- took the last head away, and by a look after the commit of either that or the insert.
-- `not_yet`: tries that found its time not come, which are no failures; since when. `postponed`: of one
-- with a lane, from such a try to the next claim: whatever else can run in its lane goes before it.
-- `held`: no later try can succeed and its lane waits for a person; `state_reason` says why.
-- `priority`: 0 high, 1 normal, 2 low; as the handler's settings said when the event came.
-- `paused_source`: set aside because its source, of this id, is paused. The claim's indexes do not
-- hold these rows, so it does not get slower by their number. Set by the node that met it, cleared
-- within two polls after the source is resumed; `run_at` stays. Without meaning unless the row is ready: a node
-- of before this column leases such rows and leaves it.
-- `in_flight_until`: set by the claim of a call: until then it may be under way. Cleared when it is
-- known to have ended, or not to have begun.
-- Uncertain: a call was perhaps made, and its result is not known. It is not sent again until a probe
-- that was asked behind `in_flight_until` says that it is not there, or a person says so.
-- `uncertain_at`: since when. `call_token`: the lease of that call, by which a late answer is known.
-- `run_at`: the next probe; infinity: nothing but a late answer or a person decides. `probes`: asked
-- so far. `probe_token`: whose answer counts; a stale one changes nothing. `probing_from`: since when a person
-- has it asked again, which the times of the probes are counted from then.
-- Rows come, change and go quickly: autovacuum comes early, and the low fillfactor leaves room for
-- new row versions on the same page.
CREATE TABLE oncehook.delivery (
  event_id     uuid NOT NULL,
  handler_id   int NOT NULL,
  run          smallint NOT NULL DEFAULT 1 CHECK (run > 0),
  generation   smallint NOT NULL DEFAULT 0,
  state        text COLLATE "C" NOT NULL DEFAULT 'ready' CHECK (state IN ('blocked', 'ready', 'leased', 'uncertain', 'held')),
  failures     smallint NOT NULL DEFAULT 0,
  suspect      bool NOT NULL DEFAULT false,
  losses_alone smallint NOT NULL DEFAULT 0,
  losses       smallint NOT NULL DEFAULT 0,
  first_try_at timestamptz,
  run_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  leased_at    timestamptz,
  lease_token  uuid,
  lease_until  timestamptz,
  lane         text COLLATE "C" CHECK (octet_length(lane) BETWEEN 1 AND 200),
  lane_seq     bigint,
  state_reason text,
  in_flight_until timestamptz,
  uncertain_at timestamptz,
  call_token   uuid,
  probes       smallint NOT NULL DEFAULT 0,
  probe_token  uuid,
  probing_from timestamptz,
  priority     smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
  paused_source int,
  not_yet      smallint NOT NULL DEFAULT 0,
  not_yet_since timestamptz,
  postponed    bool NOT NULL DEFAULT false,
  PRIMARY KEY (event_id, handler_id),
  CHECK ((state = 'leased') = (lease_token IS NOT NULL)),
  CHECK ((state = 'leased') = (lease_until IS NOT NULL)),
  CHECK ((state = 'leased') = (leased_at IS NOT NULL)),
  CHECK ((lane IS NULL) = (lane_seq IS NULL)),
  CHECK (state <> 'blocked' OR lane IS NOT NULL),
  CONSTRAINT delivery_uncertain_at CHECK ((state = 'uncertain') = (uncertain_at IS NOT NULL)),
  CONSTRAINT delivery_uncertain_call CHECK ((state = 'uncertain') = (call_token IS NOT NULL)),
  CONSTRAINT delivery_uncertain_flight CHECK (state <> 'uncertain' OR in_flight_until IS NOT NULL),
  CONSTRAINT delivery_uncertain_probe CHECK (state = 'uncertain' OR (probes = 0 AND probe_token IS NULL AND probing_from IS NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 1);
CREATE INDEX delivery_ready   ON oncehook.delivery (handler_id, priority, run_at)
  WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL;
CREATE INDEX delivery_suspect ON oncehook.delivery (handler_id, run_at)
  WHERE state = 'ready' AND suspect AND paused_source IS NULL;
CREATE INDEX delivery_lease   ON oncehook.delivery (handler_id, lease_until) WHERE state = 'leased';
CREATE INDEX delivery_aside   ON oncehook.delivery (paused_source) WHERE paused_source IS NOT NULL;
CREATE UNIQUE INDEX delivery_one_head ON oncehook.delivery (handler_id, lane) WHERE lane IS NOT NULL AND state <> 'blocked';
CREATE INDEX delivery_held ON oncehook.delivery (handler_id) WHERE state = 'held';
CREATE INDEX delivery_blocked ON oncehook.delivery (handler_id, lane, lane_seq) WHERE state = 'blocked';
CREATE INDEX delivery_uncertain ON oncehook.delivery (handler_id, run_at) WHERE state = 'uncertain';

-- The newest event that a handler has applied to an object, where it asks for that.
-- Written: in the settle transaction that holds the effect; its row lock makes two transactions
-- with events about one object follow each other. Never deleted (until retention comes).
-- Invariant: `version`, a decimal number read from where `read_from` says, never goes back. NULL:
-- the object is known, and nothing was applied to it yet.
CREATE TABLE oncehook.latest (
  handler_id int NOT NULL,
  entity     text COLLATE "C" NOT NULL,
  read_from  text COLLATE "C" NOT NULL,
  version    numeric,
  event_id   uuid,
  PRIMARY KEY (handler_id, entity),
  CHECK ((version IS NULL) = (event_id IS NULL))
) WITH (fillfactor = 70);

-- The one final row of (event, handler, run).
-- Written: by the transaction that holds the handler's effect, in one statement with the delete of
-- the delivery; by `handlers retire` for what it cancels, by a probe, a later event or `resolve` for what was
-- uncertain or held. Never updated. Leaves by partition, which nothing does yet.
-- Invariant: at most one per (event, handler, run), by its primary key.
-- `attempts`: tries that the run took. `reason`: why, in words free of payload. `resource`: what the
-- handler says it made. `external_id`: the id that the outside world gave it. `lease_token`: of the try that
-- ended it; none where no try did.
CREATE TABLE oncehook.outcome (
  event_id    uuid NOT NULL,
  handler_id  int NOT NULL,
  run         smallint NOT NULL,
  generation  smallint NOT NULL,
  result      text COLLATE "C" NOT NULL CHECK (result IN ('succeeded', 'failed', 'skipped', 'dead', 'cancelled')),
  decided_by  text COLLATE "C" NOT NULL CHECK (decided_by IN ('handler', 'probe', 'operator', 'webhook')),
  reason      text,
  resource    text,
  attempts    int NOT NULL,
  finished_at timestamptz NOT NULL,
  lease_token uuid,
  external_id text,
  PRIMARY KEY (event_id, handler_id, run)
) PARTITION BY RANGE (event_id);

-- What the client of an operation is answered, now and at every retry: byte for byte.
-- Written: with the outcome of each run of an operation, in its transaction. Updated once, by the keeper, which
-- empties it when `expires_at` has passed; readers go by `expires_at` whether or not that has been done.
-- Leaves by partition, which nothing does yet.
-- `headers`: an array of [name, value], names in lower case. `expires_at` NULL: as long as the key names its
-- event; the renewal of the key sets it.
CREATE TABLE oncehook.response (
  event_id   uuid NOT NULL,
  handler_id int NOT NULL,
  run        smallint NOT NULL,
  status     smallint NOT NULL CHECK (status BETWEEN 200 AND 599),
  headers    jsonb,
  body       bytea CHECK (octet_length(body) <= 8388608),
  expires_at timestamptz,
  purged_at  timestamptz,
  PRIMARY KEY (event_id, handler_id, run),
  CONSTRAINT response_purged CHECK ((purged_at IS NULL) = (body IS NOT NULL) AND (headers IS NULL) = (body IS NULL))
) PARTITION BY RANGE (event_id);
CREATE INDEX response_expires ON oncehook.response (expires_at) WHERE purged_at IS NULL AND expires_at IS NOT NULL;

DO $$
BEGIN
  ALTER TABLE oncehook.response ALTER body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  NULL;
END $$;

-- Tries that failed or were lost, and answers that came after a lost lease.
-- Written: in the transaction that puts the delivery back, makes it uncertain or ends it. Never
-- updated. Leaves by partition, which nothing does yet.
-- `verdict`: retry, not_yet (what the event is about was not there), permanent, unknown (a call without
-- a definite answer), lost (the lease ended without an answer), evidence (a call's answer whose lease
-- was gone, or what a later event says of it: kept in any case, and read when the delivery is uncertain).
-- `in_flight_until`: of a try that made its delivery uncertain: no other may begin before.
-- `answer`, `resource`, `external_id`: of evidence: the result that it stands for, and what was made.
-- `status`, `headers`, `body`: the response that it brings to the client of an operation. `told_by`: the event that
-- says it; `lease_token` is then that of the one call it can be about, or none.
-- `error` names the place and the kind; messages of PostgreSQL itself, which quote values, are not
-- kept.
CREATE TABLE oncehook.attempt (
  event_id    uuid NOT NULL,
  handler_id  int NOT NULL,
  run         smallint NOT NULL,
  lease_token uuid,
  started_at  timestamptz,
  ended_at    timestamptz NOT NULL,
  verdict     text COLLATE "C" NOT NULL CHECK (verdict IN ('retry', 'not_yet', 'permanent', 'unknown', 'lost', 'evidence', 'probe')),
  error       text,
  in_flight_until timestamptz,
  answer      text COLLATE "C" CHECK (answer IN ('succeeded', 'failed', 'skipped', 'dead')),
  resource    text,
  external_id text,
  status      smallint,
  headers     jsonb,
  body        bytea,
  told_by     uuid,
  CONSTRAINT attempt_response CHECK ((status IS NULL) = (headers IS NULL) AND (status IS NULL) = (body IS NULL))
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempt_event ON oncehook.attempt (event_id);

-- Which calls effect keys name: how a later event, which carries one, finds the delivery that it settles.
-- Written: before the first call under the key leaves, in a transaction of its own, and only for handlers that
-- another one (kind "settle") names in `of`. Never updated or deleted.
-- Invariant: a call of such a handler that is under way has its key here. The key says nothing of itself: it is
-- a hash (`ohk_` and its hex digits). All runs of one generation have one key; the live one, or the last, is meant.
CREATE TABLE oncehook.effect (
  effect_key bytea PRIMARY KEY CHECK (octet_length(effect_key) = 20),
  event_id   uuid NOT NULL,
  handler_id int NOT NULL,
  generation smallint NOT NULL
);

-- What went otherwise ------------------------------------------------------------------------------

-- Other content under a known key: kept, alerted, never processed.
-- Written: by the ingest transaction, once per digest and event. Never updated or deleted.
CREATE TABLE oncehook.conflict (
  source_id    int NOT NULL,
  key          text COLLATE "C" NOT NULL,
  raw_digest   bytea NOT NULL CHECK (octet_length(raw_digest) = 32),
  event_id     uuid NOT NULL,
  first_digest bytea NOT NULL CHECK (octet_length(first_digest) = 32),
  seen_at      timestamptz NOT NULL,
  body         bytea NOT NULL,
  secret_label text COLLATE "C" NOT NULL,
  PRIMARY KEY (source_id, key, raw_digest, event_id)
);

-- A sample of refused requests: at most ten a second per source and reason; the counters are exact.
-- Written: off the request's path. Deleted: the oldest beyond 100,000, hourly, by the keeper.
-- No body: what did not verify is not kept.
CREATE TABLE oncehook.rejected (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  received_at timestamptz NOT NULL,
  source_id   int,
  reason      text COLLATE "C" NOT NULL,
  digest      bytea,
  size        bigint NOT NULL,
  peer        inet
);

-- Who did what, why.
-- Written: in the transaction of the action itself (replay, resolve, handlers retire, pause, resume, token).
-- Append-only, by a trigger. `subject` is an event id, a handler's or source's name, a token's id, or a bulk
-- replay's number, which the new runs that it opened have as `bulk` in `after`.
CREATE TABLE oncehook.audit (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at      timestamptz NOT NULL DEFAULT now(),
  actor   text NOT NULL,
  action  text COLLATE "C" NOT NULL,
  subject text COLLATE "C" NOT NULL,
  reason  text,
  before  jsonb,
  after   jsonb
);
CREATE INDEX audit_subject ON oncehook.audit (subject);
CREATE INDEX audit_bulk ON oncehook.audit ((after ->> 'bulk')) WHERE after ->> 'bulk' IS NOT NULL;

CREATE FUNCTION oncehook.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'oncehook.audit is append-only';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON oncehook.audit
  FOR EACH STATEMENT EXECUTE FUNCTION oncehook.audit_is_append_only();

-- A token of the API listener: who may ask for what.
-- Written: by `token create` and `token revoke`, with their audit; `last_used_at` by the nodes, at most once
-- a minute, apart from the request. Never deleted: while there is a row, revoked ones too, every request
-- needs a token, and a name or an id in the audit stays explained.
-- `id` is public: it stands in the token's text, in logs and in the audit. `hash` is SHA-256 of the secret
-- part, 32 random bytes that are shown once and kept nowhere. A salt and a slow hash protect what people
-- choose, which can be guessed; nobody guesses 256 random bits, so a plain hash gives nothing away.
-- `name` is the client's, on several rows while it changes from one token to the next; it is the actor
-- `api:NAME` in the audit and scopes the idempotency keys. `local` is whoever comes where there are no tokens.
-- `expires_at`, if it is set, is by the database's clock, as every time in a row.
CREATE TABLE oncehook.token (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text COLLATE "C" NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$' AND name <> 'local'),
  roles        text[] COLLATE "C" NOT NULL CHECK (cardinality(roles) > 0 AND roles <@ ARRAY['read', 'operate', 'submit']),
  hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
  created_at   timestamptz NOT NULL DEFAULT now(),
  created_by   text NOT NULL,
  expires_at   timestamptz,
  last_used_at timestamptz,
  revoked_at   timestamptz,
  revoked_by   text,
  CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) WITH (fillfactor = 50);

-- A bulk replay: new runs of every finished one that fits, as one order of a person.
-- Written: by its start, by `stop`, `continue` and `give-up`; by whoever opens its next page, a node or the
-- command. Never deleted.
-- What it means is fixed by its start: the (event, handler) that were received in [since, until), whose
-- last run ended with one of `results` at `started_at` or before. NULL for source, handler and type: any.
-- Invariant: the cursor (`after_event`, `after_handler`) moves in the transaction that opens the page's
-- runs, under a lock that compares it; so each (event, handler) is met once, whoever does it, and a bulk
-- replay that was interrupted at any moment goes on behind the last page that was committed.
-- Invariant: `replayed` is the number of audit rows whose `bulk` is its id.
-- `next_at`: when its next page is due, which keeps `rate` over all nodes; while a node reads a page, when
-- another may take it for dead.
-- `refusals`: the first hundred of what was not opened, and why. `type` has * for any run of characters.
-- `given_up`: ended before it was complete, by a person or for another one in its place.
CREATE TABLE oncehook.bulk_replay (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source_id     int,
  handler_id    int,
  type          text COLLATE "C",
  results       text[] COLLATE "C" NOT NULL,
  since         timestamptz NOT NULL,
  until         timestamptz NOT NULL,
  force         bool NOT NULL,
  verify_bytes  bool NOT NULL,
  rate          int NOT NULL CHECK (rate > 0),
  reason        text NOT NULL,
  actor         text NOT NULL,
  started_at    timestamptz NOT NULL,
  after_event   uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  after_handler int NOT NULL DEFAULT 0,
  replayed      bigint NOT NULL DEFAULT 0,
  refused       bigint NOT NULL DEFAULT 0,
  refusals      jsonb NOT NULL DEFAULT '[]',
  next_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  state         text COLLATE "C" NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'stopped', 'complete', 'given_up')),
  ended_at      timestamptz,
  CHECK ((state IN ('complete', 'given_up')) = (ended_at IS NOT NULL))
);
CREATE INDEX bulk_replay_due ON oncehook.bulk_replay (next_at) WHERE state = 'running';

-- House-keeping ------------------------------------------------------------------------------------

-- Makes the day partitions from yesterday to `days_ahead` days from now, in UTC. A partition is
-- built apart and attached, which does not block writers of its parent.
CREATE FUNCTION oncehook.make_partitions(days_ahead int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  parent text;
  child text;
  starts timestamptz;
  ends timestamptz;
  made int := 0;
BEGIN
  -- One maker at a time; another node's maker has done the work when the lock is ours.
  PERFORM pg_advisory_xact_lock(hashtext('oncehook.make_partitions'));
  FOREACH parent IN ARRAY ARRAY['request', 'event', 'outcome', 'response', 'receipt', 'attempt'] LOOP
    FOR day IN -1 .. days_ahead LOOP
      child := parent || '_' || to_char(today + day, 'YYYYMMDD');
      CONTINUE WHEN to_regclass('oncehook.' || child) IS NOT NULL;
      starts := (today + day)::timestamp AT TIME ZONE 'UTC';
      ends := (today + day + 1)::timestamp AT TIME ZONE 'UTC';
      EXECUTE format('CREATE TABLE oncehook.%I (LIKE oncehook.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION)',
                     child, parent);
      IF parent IN ('receipt', 'attempt') THEN
        EXECUTE format('ALTER TABLE oncehook.%I ATTACH PARTITION oncehook.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, child, starts, ends);
      ELSE
        EXECUTE format('ALTER TABLE oncehook.%I ATTACH PARTITION oncehook.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, child, oncehook.uuid7_floor(starts), oncehook.uuid7_floor(ends));
      END IF;
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;

-- For `sql` handlers -------------------------------------------------------------------------------

-- What a `sql` handler's function gets.
CREATE TYPE oncehook.delivered AS (
  id          uuid,
  source      text,
  key         text,
  type        text,
  entity      text,
  occurred_at timestamptz,
  received_at timestamptz,
  body        bytea,
  effect_key  text,
  run         int,
  attempt     int
);

-- The body as jsonb, or NULL where jsonb cannot hold it (not JSON, not UTF-8, an escaped NUL).
CREATE FUNCTION oncehook.body_json(event oncehook.delivered) RETURNS jsonb
  LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN convert_from(event.body, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;

-- Emits an event to an internal source: it is stored and handled exactly if this transaction commits.
-- `cause` is what a handler was called with. Raises what is wrong with its arguments.
CREATE FUNCTION oncehook.emit_bytes(
  source text, key text, type text, body bytea, entity text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
  cause oncehook.delivered DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  to_source int;
BEGIN
  SELECT s.id INTO to_source FROM oncehook.source s WHERE s.name = emit_bytes.source AND s.recipe = 'internal';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'oncehook.emit: no source % with provider = "internal" is registered', quote_nullable(source)
      USING HINT = 'A running node registers the sources of its configuration.';
  END IF;
  IF key IS NULL OR octet_length(key) NOT BETWEEN 1 AND 1024 THEN
    RAISE EXCEPTION 'oncehook.emit: a key has 1 to 1024 bytes';
  END IF;
  IF body IS NULL OR octet_length(body) > 1048576 THEN
    RAISE EXCEPTION 'oncehook.emit: a body is given and has 1 MiB at most';
  END IF;
  IF octet_length(type) > 1024 OR octet_length(entity) > 1024 THEN
    RAISE EXCEPTION 'oncehook.emit: type and entity have 1024 bytes at most';
  END IF;
  IF NOT isfinite(occurred_at) THEN
    RAISE EXCEPTION 'oncehook.emit: occurred_at is a moment, or left out';
  END IF;
  INSERT INTO oncehook.emitted (source_id, key, type, entity, occurred_at, body, caused_by, correlation_id)
  VALUES (to_source, key, type, entity, coalesce(occurred_at, clock_timestamp()), body, cause.id,
          coalesce((SELECT e.correlation_id FROM oncehook.event e WHERE e.id = cause.id), gen_random_uuid()));
END $$;

-- The same with a JSON body.
CREATE FUNCTION oncehook.emit(
  source text, key text, type text, body jsonb, entity text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
  cause oncehook.delivered DEFAULT NULL
) RETURNS void LANGUAGE sql AS $$
  SELECT oncehook.emit_bytes(source, key, type, convert_to(body::text, 'UTF8'), entity, occurred_at, cause);
$$;

-- What an operation's answer says of the response: `status`, `headers`, one of `body` (JSON), `body_text` and
-- `body_base64`. All NULL where it says nothing. Raises, for good, what cannot be stored.
CREATE FUNCTION oncehook.response_of(
  answer jsonb, OUT status int, OUT headers jsonb, OUT body bytea, OUT external_id text
) LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  bodies int;
  media text;
BEGIN
  IF answer IS NULL OR jsonb_typeof(answer) <> 'object' THEN
    RETURN;
  END IF;
  IF jsonb_typeof(answer -> 'external_id') IN ('string', 'number') THEN
    external_id := answer ->> 'external_id';
  END IF;
  bodies := (answer ? 'body')::int + (answer ? 'body_text')::int + (answer ? 'body_base64')::int;
  IF bodies = 0 AND NOT answer ? 'status' AND NOT answer ? 'headers' THEN
    RETURN;
  END IF;
  IF bodies > 1 THEN
    RAISE EXCEPTION 'the answer has more than one of body, body_text and body_base64' USING ERRCODE = 'OH001';
  END IF;
  IF NOT answer ? 'status' THEN
    status := CASE WHEN answer ->> 'result' = 'failed' THEN 422 ELSE 200 END;
  ELSIF jsonb_typeof(answer -> 'status') = 'number' AND answer ->> 'status' ~ '^[2-5][0-9][0-9]$' THEN
    status := (answer ->> 'status')::int;
  ELSE
    RAISE EXCEPTION 'the answer''s status is not one of 200 to 599' USING ERRCODE = 'OH001';
  END IF;
  headers := coalesce(answer -> 'headers', '{}');
  IF jsonb_typeof(headers) <> 'object' OR EXISTS (
    SELECT FROM jsonb_each(headers) h
     WHERE h.key !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]{1,200}$' OR jsonb_typeof(h.value) <> 'string'
        OR octet_length(h.value #>> '{}') > 8002 OR h.value #>> '{}' !~ '^([!-~]([ -~]*[!-~])?)?$') THEN
    RAISE EXCEPTION 'a header of the answer is not one that HTTP can carry' USING ERRCODE = 'OH001';
  END IF;
  SELECT coalesce(jsonb_agg(jsonb_build_array(lower(h.key), h.value) ORDER BY lower(h.key)), '[]') INTO headers
    FROM jsonb_each(headers) h;
  body := '';
  IF answer ? 'body' THEN
    body := convert_to((answer -> 'body')::text, 'UTF8');
    media := 'application/json';
  ELSIF answer ? 'body_text' THEN
    IF jsonb_typeof(answer -> 'body_text') <> 'string' THEN
      RAISE EXCEPTION 'the answer''s body_text is no text' USING ERRCODE = 'OH001';
    END IF;
    body := convert_to(answer ->> 'body_text', 'UTF8');
    media := 'text/plain; charset=utf-8';
  ELSIF answer ? 'body_base64' THEN
    BEGIN
      body := decode(answer ->> 'body_base64', 'base64');
    EXCEPTION WHEN data_exception THEN
      body := NULL;
    END;
    IF body IS NULL THEN
      RAISE EXCEPTION 'the answer''s body_base64 is not base64' USING ERRCODE = 'OH001';
    END IF;
    media := 'application/octet-stream';
  END IF;
  IF octet_length(body) > 8388608 THEN
    RAISE EXCEPTION 'the answer''s body is longer than 8 MiB' USING ERRCODE = 'OH001';
  END IF;
  IF status IN (204, 205, 304) AND body <> '' THEN
    RAISE EXCEPTION 'an answer of this status has no body' USING ERRCODE = 'OH001';
  END IF;
  IF media IS NOT NULL AND NOT EXISTS (SELECT FROM jsonb_array_elements(headers) h WHERE h ->> 0 = 'content-type') THEN
    headers := headers || jsonb_build_array(jsonb_build_array('content-type', media));
  END IF;
END $$;

-- Runs a `sql` handler over the locked deliveries of a settle batch, each in a block of its own,
-- until `budget` of handler time is spent. Returns one row per delivery it ran. An ordinary
-- exception is that delivery's verdict; deadlocks, serialization failures, lock time-outs and
-- cancellation end the whole batch. What the function returns is looked up here: `answers_json` is what a node
-- found when it started, and by that a new function's `retry` would be thrown away and its event booked as done.
-- `responds`: it serves an operation, so what its answer says of the response is read too.
CREATE FUNCTION oncehook.run_sql_handler(
  call text, answers_json bool, events uuid[], runs smallint[], attempts int[], effect_keys text[], source_names text[],
  budget interval, responds bool DEFAULT false,
  OUT no int, OUT answer jsonb, OUT code text, OUT message text, OUT object_name text, OUT line text,
  OUT status int, OUT headers jsonb, OUT body bytea, OUT external_id text
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz := clock_timestamp();
  own_role name := current_user;
  own_session name := session_user;
  called regprocedure := to_regprocedure(call || '(oncehook.delivered)');
  returns regtype := (SELECT prorettype FROM pg_catalog.pg_proc WHERE oid = called);
  undone bool;
  -- One statement for the whole batch: a look-up per event was planned anew each time and cost six
  -- times the handler. A cursor, so that one body at a time is in memory.
  stored CURSOR FOR
    SELECT given.at, e.*
      FROM unnest(events) WITH ORDINALITY AS given(event_id, at)
      LEFT JOIN LATERAL (
        SELECT e.id, e.key, e.type, e.entity, e.occurred_at, r.received_at,
               substr(r.body, e.item_offset + 1, e.item_length) AS body
          FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id
         WHERE e.id = given.event_id LIMIT 1) e ON true;
  item record;
  event oncehook.delivered;
  context text;
  table_name text;
  column_name text;
  constraint_name text;
  response_bytes bigint := 0;
BEGIN
  -- The plan must not depend on how small the tables were when they were last counted.
  SET LOCAL enable_seqscan = off;
  OPEN stored;
  SET LOCAL enable_seqscan TO DEFAULT;
  LOOP
    FETCH stored INTO item;
    EXIT WHEN NOT FOUND;
    no := item.at; answer := NULL; code := NULL; message := NULL; object_name := NULL; line := NULL;
    status := NULL; headers := NULL; body := NULL; external_id := NULL;
    IF item.id IS NULL THEN
      code := 'OH404'; message := 'payload-expired';
      RETURN NEXT;
      CONTINUE;
    END IF;
    event := (item.id, source_names[no], item.key, item.type, item.entity, item.occurred_at, item.received_at, item.body,
              effect_keys[no], runs[no], attempts[no]);
    undone := false;
    BEGIN
      IF returns = 'jsonb'::regtype THEN
        EXECUTE 'SELECT ' || call || '($1)' INTO answer USING event;
        IF answer ->> 'result' NOT IN ('done', 'failed', 'skip') OR jsonb_typeof(answer -> 'result') = 'null' THEN
          -- Not done: what this try wrote goes with its block; the answer stays. The function may raise this code
          -- too: then it is an error like any other.
          undone := true;
          RAISE EXCEPTION 'not done' USING ERRCODE = 'OHRET';
        END IF;
      ELSIF returns = 'void'::regtype THEN
        EXECUTE 'SELECT ' || call || '($1)' USING event;
      ELSIF returns IS NULL THEN
        -- A call may find another one, by a default or a polymorphic argument, whose answer nobody would read.
        RAISE EXCEPTION 'there is no function %(oncehook.delivered) now', call;
      ELSE
        RAISE EXCEPTION 'the function returns % now: it must return void or jsonb', returns;
      END IF;
      IF responds THEN
        IF current_user <> own_role OR session_user <> own_session THEN
          RESET SESSION AUTHORIZATION;
          RESET ROLE;
        END IF;
        -- In the block: the effect of what cannot be stored is undone.
        SELECT r.status, r.headers, r.body, r.external_id INTO status, headers, body, external_id
          FROM oncehook.response_of(answer) r;
      END IF;
      SET CONSTRAINTS ALL IMMEDIATE;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE '40%' OR SQLSTATE IN ('55P03', '57014') THEN
        RAISE;
      END IF;
      IF NOT undone THEN
        GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, table_name = TABLE_NAME,
          column_name = COLUMN_NAME, constraint_name = CONSTRAINT_NAME;
        answer := NULL;
        status := NULL; headers := NULL; body := NULL; external_id := NULL;
        code := SQLSTATE;
        message := SQLERRM;
        object_name := concat_ws(' ', 'table ' || nullif(table_name, ''), 'column ' || nullif(column_name, ''),
                                 'constraint ' || nullif(constraint_name, ''));
        -- Only where it happened; the quoted statement may hold values.
        line := substring(context FROM 'PL/pgSQL function [^\n]* line \d+');
      END IF;
    END;
    -- The next one does not run in a role that this one took on.
    IF current_user <> own_role OR session_user <> own_session THEN
      RESET SESSION AUTHORIZATION;
      RESET ROLE;
    END IF;
    RETURN NEXT;
    -- Responses are kept in memory until the batch is written.
    response_bytes := response_bytes + coalesce(octet_length(body), 0);
    EXIT WHEN clock_timestamp() - began > budget OR response_bytes > 8388608;
  END LOOP;
  CLOSE stored;
  -- Replaced in the middle: what it answered was perhaps not read. Nothing of it stays.
  IF to_regprocedure(call || '(oncehook.delivered)') IS DISTINCT FROM called THEN
    RAISE EXCEPTION 'the function was replaced while it ran' USING ERRCODE = 'serialization_failure';
  END IF;
END $$;
