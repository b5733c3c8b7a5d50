-- What attempts printed, in pieces, each a blob. Retention takes the blobs first: then the digest is NULL.
CREATE TABLE outputs (
    number        INTEGER PRIMARY KEY,
    item          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    digest        TEXT,
    epoch         INTEGER NOT NULL
);
CREATE INDEX outputs_of_item ON outputs (item, attempt, number);
CREATE INDEX outputs_by_digest ON outputs (digest) WHERE digest IS NOT NULL;
