-- A head that waits for its time gives way. See schema.sql for what the column means. Nodes of before
-- leave it as it is: a head of theirs keeps its place.

ALTER TABLE oncehook.delivery ADD COLUMN postponed bool NOT NULL DEFAULT false;
