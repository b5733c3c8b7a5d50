-- One control plane: who leads it, and what may never be used again.
CREATE TABLE leader (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    control_plane TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    next_fence    INTEGER NOT NULL,
    last_number   INTEGER NOT NULL,
    last_step     INTEGER NOT NULL,
    last_decision INTEGER NOT NULL
);

-- `owed`: it is not over, or something of it is still to be done.
CREATE TABLE items (
    number        INTEGER PRIMARY KEY,
    id            TEXT NOT NULL UNIQUE,
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    owner         TEXT NOT NULL,
    key           TEXT,
    submitted_at  REAL NOT NULL,
    description   BLOB NOT NULL,
    state         TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    cluster       TEXT,
    fence         INTEGER,
    priority      INTEGER NOT NULL,
    finished_at   REAL,
    owed          INTEGER NOT NULL,
    rest          BLOB NOT NULL,
    epoch         INTEGER NOT NULL
);
CREATE INDEX items_owed ON items (number) WHERE owed;
CREATE INDEX items_over ON items (finished_at, number) WHERE finished_at IS NOT NULL AND NOT owed;
CREATE INDEX items_of_owner ON items (owner, number);
CREATE UNIQUE INDEX items_by_key ON items (owner, key) WHERE key IS NOT NULL;

-- The writer counts, so that numbers have no gaps and are never used again; only retention takes some away.
CREATE TABLE steps (
    number        INTEGER PRIMARY KEY,
    item          INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    state         TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    at            REAL NOT NULL,
    code          TEXT NOT NULL,
    sentence      TEXT NOT NULL,
    cluster       TEXT,
    epoch         INTEGER NOT NULL
);
CREATE UNIQUE INDEX steps_of_item ON steps (item, step);

CREATE TABLE decisions (
    number        INTEGER PRIMARY KEY,
    item          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    at            REAL NOT NULL,
    cluster       TEXT,
    document      BLOB NOT NULL,
    epoch         INTEGER NOT NULL
);
CREATE INDEX decisions_of_item ON decisions (item, number);

CREATE TABLE outcomes (
    item          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    document      BLOB NOT NULL,
    digest        TEXT,
    epoch         INTEGER NOT NULL
);
CREATE UNIQUE INDEX outcomes_of_item ON outcomes (item, attempt);
CREATE INDEX outcomes_by_digest ON outcomes (digest) WHERE digest IS NOT NULL;

CREATE TABLE fleet (
    what          TEXT NOT NULL CHECK (what IN ('cluster', 'owner')),
    name          TEXT NOT NULL,
    document      BLOB NOT NULL,
    epoch         INTEGER NOT NULL,
    PRIMARY KEY (what, name)
) WITHOUT ROWID;

CREATE TABLE settings (
    key           TEXT PRIMARY KEY,
    value         BLOB NOT NULL,
    epoch         INTEGER NOT NULL
) WITHOUT ROWID;

-- Small blobs are here; of large ones only the size, they are files.
CREATE TABLE blobs (
    number        INTEGER PRIMARY KEY,
    digest        TEXT NOT NULL UNIQUE,
    bytes         INTEGER NOT NULL,
    data          BLOB
);

CREATE TABLE payloads (
    item          INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    digest        TEXT NOT NULL,
    PRIMARY KEY (item, position)
) WITHOUT ROWID;
CREATE INDEX payloads_by_digest ON payloads (digest);

-- A hash of each id that was forgotten.
CREATE TABLE expired (
    hash          INTEGER PRIMARY KEY
);
