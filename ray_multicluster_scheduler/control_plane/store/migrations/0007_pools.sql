-- Pools that were created or changed at run time are stored beside the orders for clusters and owners.
CREATE TABLE fleet_with_pools (
    what          TEXT NOT NULL CHECK (what IN ('cluster', 'owner', 'pool')),
    name          TEXT NOT NULL,
    document      BLOB NOT NULL,
    epoch         INTEGER NOT NULL,
    PRIMARY KEY (what, name)
) WITHOUT ROWID;
INSERT INTO fleet_with_pools SELECT * FROM fleet;
DROP TABLE fleet;
ALTER TABLE fleet_with_pools RENAME TO fleet;
