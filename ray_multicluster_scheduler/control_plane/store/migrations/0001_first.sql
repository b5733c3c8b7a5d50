-- One control plane: who leads it, and what may never be used again.
CREATE TABLE leader (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    control_plane TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    next_fence   INTEGER NOT NULL,
    last_number  INTEGER NOT NULL
);

CREATE TABLE items (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL,
    name         TEXT NOT NULL,
    owner        TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    description  BLOB NOT NULL,
    state        TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    cluster      TEXT,
    fence        INTEGER,
    priority     INTEGER NOT NULL,
    finished_at  REAL,
    rest         BLOB NOT NULL,
    epoch        INTEGER NOT NULL
);
CREATE INDEX items_unfinished ON items (number) WHERE finished_at IS NULL;
CREATE INDEX items_finished ON items (finished_at) WHERE finished_at IS NOT NULL;

-- Numbers have no gaps: the writer counts, not SQLite.
CREATE TABLE steps (
    number       INTEGER PRIMARY KEY,
    item         INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    state        TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    at           REAL NOT NULL,
    code         TEXT NOT NULL,
    sentence     TEXT NOT NULL,
    cluster      TEXT,
    epoch        INTEGER NOT NULL
);
CREATE UNIQUE INDEX steps_of_item ON steps (item, step);

CREATE TABLE decisions (
    number       INTEGER PRIMARY KEY,
    item         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    at           REAL NOT NULL,
    cluster      TEXT,
    document     BLOB NOT NULL,
    epoch        INTEGER NOT NULL
);
CREATE INDEX decisions_of_item ON decisions (item, number);

CREATE TABLE outcomes (
    item         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    document     BLOB NOT NULL,
    digest       TEXT,
    epoch        INTEGER NOT NULL,
    PRIMARY KEY (item, attempt)
) WITHOUT ROWID;
CREATE INDEX outcomes_by_digest ON outcomes (digest) WHERE digest IS NOT NULL;

CREATE TABLE fleet (
    what         TEXT NOT NULL CHECK (what IN ('cluster', 'owner')),
    name         TEXT NOT NULL,
    document     BLOB NOT NULL,
    epoch        INTEGER NOT NULL,
    PRIMARY KEY (what, name)
) WITHOUT ROWID;

-- Small blobs are here; of large ones only the size, they are files.
CREATE TABLE blobs (
    digest       TEXT PRIMARY KEY,
    bytes        INTEGER NOT NULL,
    data         BLOB
) WITHOUT ROWID;

CREATE TABLE payloads (
    item         INTEGER NOT NULL,
    digest       TEXT NOT NULL,
    PRIMARY KEY (item, digest)
) WITHOUT ROWID;
CREATE INDEX payloads_by_digest ON payloads (digest);

-- A hash of each id that was forgotten.
CREATE TABLE expired (
    hash         INTEGER PRIMARY KEY
);
