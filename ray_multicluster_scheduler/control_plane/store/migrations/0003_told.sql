-- One count for all that is told: steps, decisions, and notes of everything else. Decisions that were counted by
-- themselves come behind the steps of that time.
CREATE TABLE notes (
    number        INTEGER PRIMARY KEY,
    what          TEXT NOT NULL,
    subject       TEXT NOT NULL,
    at            REAL NOT NULL,
    user          TEXT,
    document      BLOB NOT NULL,
    epoch         INTEGER NOT NULL
);
ALTER TABLE leader ADD COLUMN last_told INTEGER NOT NULL DEFAULT 0;
UPDATE decisions SET number = -number;
UPDATE decisions SET number = (SELECT last_step FROM leader) - number;
UPDATE leader SET last_told = last_step + last_decision;
ALTER TABLE leader DROP COLUMN last_step;
ALTER TABLE leader DROP COLUMN last_decision;
