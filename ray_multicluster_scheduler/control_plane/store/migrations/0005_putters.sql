-- Who put a blob. Each of them may name it, and beside them only those who have an item with it.
CREATE TABLE putters (
    digest        TEXT NOT NULL,
    user          TEXT NOT NULL,
    PRIMARY KEY (digest, user)
) WITHOUT ROWID;
