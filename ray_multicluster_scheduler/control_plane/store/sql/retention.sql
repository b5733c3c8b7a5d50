-- name: to_expire
SELECT number, id
  FROM items
 WHERE finished_at IS NOT NULL
   AND (finished_at < :ended_before
        OR number NOT IN (SELECT number FROM items WHERE finished_at IS NOT NULL
                           ORDER BY finished_at DESC, number DESC LIMIT :keep))
 ORDER BY finished_at, number
 LIMIT :limit

-- name: expire
INSERT OR IGNORE INTO expired (hash) VALUES (?)

-- name: forget_steps
DELETE FROM steps WHERE item = ?

-- name: forget_decisions
DELETE FROM decisions WHERE item = ?

-- name: forget_outcomes
DELETE FROM outcomes WHERE item = ?

-- name: forget_payloads
DELETE FROM payloads WHERE item = ?

-- name: forget_item
DELETE FROM items WHERE number = ?

-- name: nameless_blobs
SELECT digest, bytes, data IS NULL
  FROM blobs
 WHERE NOT EXISTS (SELECT 1 FROM payloads WHERE payloads.digest = blobs.digest)
   AND NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.digest = blobs.digest)

-- name: forget_blob
DELETE FROM blobs WHERE digest = ?
