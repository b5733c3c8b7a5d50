-- name: leader
SELECT control_plane, epoch, next_fence, last_number FROM leader

-- name: last_step
SELECT coalesce(max(number), 0) FROM steps

-- name: last_decision
SELECT coalesce(max(number), 0) FROM decisions

-- name: unfinished
SELECT number, id, kind, name, owner, submitted_at, description,
       state, attempt, cluster, fence, priority, finished_at, rest
  FROM items
 WHERE finished_at IS NULL AND number > ?
 ORDER BY number
 LIMIT ?

-- name: item
SELECT number, id, kind, name, owner, submitted_at, description,
       state, attempt, cluster, fence, priority, finished_at, rest
  FROM items
 WHERE id = ?

-- name: items
SELECT number, id, kind, name, owner, submitted_at, description,
       state, attempt, cluster, fence, priority, finished_at, rest
  FROM items
 WHERE number < :before
   AND (:kind IS NULL OR kind = :kind)
   AND (:owner IS NULL OR owner = :owner)
   AND (:cluster IS NULL OR cluster = :cluster)
   AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
 ORDER BY number DESC
 LIMIT :limit

-- name: payloads
SELECT digest FROM payloads WHERE item = ? ORDER BY digest

-- name: steps
SELECT :id, step, state, attempt, at, code, sentence, cluster
  FROM steps
 WHERE item = (SELECT number FROM items WHERE id = :id)
 ORDER BY step

-- name: steps_after
SELECT steps.number, items.id, step, steps.state, steps.attempt, at, code, sentence, steps.cluster
  FROM steps JOIN items ON items.number = steps.item
 WHERE steps.number > ?
 ORDER BY steps.number
 LIMIT ?

-- name: decisions
SELECT :id, attempt, at, cluster, document
  FROM decisions
 WHERE item = (SELECT number FROM items WHERE id = :id)
 ORDER BY number

-- name: outcome
SELECT :id, attempt, document, digest
  FROM outcomes
 WHERE item = (SELECT number FROM items WHERE id = :id)
 ORDER BY attempt DESC
 LIMIT 1

-- name: fleet
SELECT what, name, document FROM fleet ORDER BY name

-- name: expired
SELECT 1 FROM expired WHERE hash = ?

-- name: blob
SELECT data FROM blobs WHERE digest = ?

-- name: has_blob
SELECT 1 FROM blobs WHERE digest = ?

-- name: blob_bytes
SELECT coalesce(sum(bytes), 0) FROM blobs
