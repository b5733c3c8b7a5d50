-- Tasks of model serving. The document is the request, and once the task has ended its outcome.
CREATE TABLE serving_tasks (
    number        INTEGER PRIMARY KEY,
    id            TEXT NOT NULL UNIQUE,
    model         TEXT NOT NULL,
    owner         TEXT NOT NULL,
    submitted_at  REAL NOT NULL,
    fingerprint   INTEGER NOT NULL,
    state         TEXT NOT NULL,
    at            REAL NOT NULL,
    instances     TEXT NOT NULL,
    document      BLOB NOT NULL,
    epoch         INTEGER NOT NULL
);
