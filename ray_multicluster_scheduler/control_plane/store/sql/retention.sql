-- name: newest_to_expire
SELECT finished_at, number
  FROM items
 WHERE finished_at IS NOT NULL AND NOT owed
 ORDER BY finished_at DESC, number DESC
 LIMIT 1 OFFSET ?

-- name: to_expire
SELECT number, id
  FROM items
 WHERE finished_at IS NOT NULL AND NOT owed
   AND (finished_at < :ended_before OR (finished_at, number) <= (:finished_at, :number))
   AND id NOT IN (SELECT value FROM json_each(:needed))
 ORDER BY finished_at, number
 LIMIT :limit

-- name: to_forget
SELECT number, id
  FROM items
 WHERE id = :id AND finished_at IS NOT NULL AND NOT owed
   AND id NOT IN (SELECT value FROM json_each(:needed))

-- name: expire
INSERT OR IGNORE INTO expired (hash) VALUES (?)

-- name: delete_steps
DELETE FROM steps WHERE item = ?

-- name: delete_decisions
DELETE FROM decisions WHERE item = ?

-- name: delete_outcomes
DELETE FROM outcomes WHERE item = ?

-- name: delete_outputs
DELETE FROM outputs WHERE item = ?

-- name: delete_payloads
DELETE FROM payloads WHERE item = ?

-- name: delete_notes_before
DELETE FROM notes WHERE number IN (SELECT number FROM notes WHERE at < ? ORDER BY number LIMIT ?)

-- name: delete_item
DELETE FROM items WHERE number = ?

-- name: delete_blob
DELETE FROM blobs
 WHERE digest = ?1
   AND NOT EXISTS (SELECT 1 FROM payloads WHERE payloads.digest = ?1)
   AND NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.digest = ?1)
   AND NOT EXISTS (SELECT 1 FROM outputs WHERE outputs.digest = ?1)
   AND NOT EXISTS (SELECT 1 FROM settings, json_each(CAST(settings.value AS TEXT), '$.payloads') AS held
                    WHERE settings.key GLOB 'deployment/*' AND held.value = ?1)
RETURNING bytes, data IS NULL

-- name: delete_putters
DELETE FROM putters WHERE digest = ?

-- name: delete_payloads_before
DELETE FROM payloads
 WHERE item IN (SELECT number FROM items WHERE finished_at IS NOT NULL AND NOT owed AND finished_at < :ended_before)

-- name: delete_outputs_before
UPDATE outputs SET digest = NULL
 WHERE digest IS NOT NULL
   AND item IN (SELECT number FROM items WHERE finished_at IS NOT NULL AND NOT owed AND finished_at < :ended_before)

-- name: delete_values_before
UPDATE outcomes SET digest = NULL
 WHERE digest IS NOT NULL
   AND item IN (SELECT number
                  FROM items
                 WHERE finished_at IS NOT NULL AND NOT owed AND finished_at < :ended_before
                   AND id NOT IN (SELECT value FROM json_each(:needed)))
