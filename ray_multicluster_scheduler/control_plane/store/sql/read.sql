-- name: leader
SELECT next_fence, last_number, last_told FROM leader

-- name: open_items
SELECT number, id, kind, name, owner, submitted_at, description, key, repeats,
       state, attempt, cluster, fence, priority, finished_at, owed, rest
  FROM items
 WHERE owed AND number > ?
 ORDER BY number
 LIMIT ?

-- name: item
SELECT number, id, kind, name, owner, submitted_at, description, key, repeats,
       state, attempt, cluster, fence, priority, finished_at, owed, rest
  FROM items
 WHERE id = ?

-- name: known_ids
SELECT items.id FROM json_each(?) AS wanted JOIN items ON items.id = wanted.value
UNION ALL
SELECT hash FROM json_each(?) AS wanted JOIN expired ON expired.hash = wanted.value

-- name: known_id
SELECT 1 FROM items WHERE id = ?
UNION ALL
SELECT 1 FROM expired WHERE hash = ?

-- name: owns_blob
SELECT 1 FROM putters WHERE digest = ?1 AND user = ?2
UNION ALL
SELECT 1 FROM payloads JOIN items ON items.number = payloads.item WHERE payloads.digest = ?1 AND items.owner = ?2
UNION ALL
SELECT 1 FROM outcomes JOIN items ON items.number = outcomes.item WHERE outcomes.digest = ?1 AND items.owner = ?2
UNION ALL
SELECT 1 FROM outputs JOIN items ON items.number = outputs.item WHERE outputs.digest = ?1 AND items.owner = ?2
LIMIT 1

-- name: retries_of
SELECT id FROM items WHERE repeats = ? ORDER BY number DESC LIMIT ?

-- name: id_by_key
SELECT id FROM items WHERE owner = ? AND key = ?

-- name: items
SELECT number, id, kind, name, owner, submitted_at, description, key, repeats,
       state, attempt, cluster, fence, priority, finished_at, owed, rest
  FROM items

-- name: items_before
 WHERE number < :after

-- name: items_after
 WHERE number > :after

-- name: items_kind
   AND kind = :kind

-- name: items_owner
   AND owner = :owner

-- name: items_cluster
   AND cluster = :cluster

-- name: items_states
   AND state IN (SELECT value FROM json_each(:states))

-- name: items_unfinished
   AND owed

-- name: items_name
   AND name = :name

-- name: items_id_prefix
   AND substr(id, 1, length(:id_prefix)) = :id_prefix

-- name: items_since
   AND submitted_at >= :since

-- name: items_until
   AND submitted_at < :until

-- name: items_newest_first
 ORDER BY number DESC
 LIMIT :limit

-- name: items_oldest_first
 ORDER BY number
 LIMIT :limit

-- name: last_dispatches_since
-- CROSS: first the few that ended lately, by their index, and then their steps; never all steps.
SELECT items.id, steps.cluster, max(steps.at)
  FROM items CROSS JOIN steps ON steps.item = items.number
 WHERE items.finished_at IS NOT NULL AND items.finished_at >= ?1 AND NOT items.owed
   AND steps.state = 'DISPATCHING' AND steps.attempt = 1 AND steps.at >= ?1 AND steps.cluster IS NOT NULL
 GROUP BY items.kind, CASE items.kind WHEN 'gang' THEN items.number END, steps.cluster

-- name: oldest_completed_run
SELECT min(submitted_at)
  FROM items
 WHERE finished_at IS NOT NULL AND (?1 IS NULL OR owner = ?1)
   AND EXISTS (SELECT 1 FROM steps WHERE steps.item = items.number AND steps.state = 'RUNNING')

-- name: count_unfinished
SELECT kind, owner, state, cluster, count(*)
  FROM items
 WHERE owed AND finished_at IS NULL
 GROUP BY kind, owner, state, cluster

-- name: payloads
SELECT digest FROM payloads WHERE item = ? ORDER BY position

-- name: steps
SELECT :id, step, state, attempt, at, code, sentence, cluster
  FROM steps
 WHERE item = (SELECT number FROM items WHERE id = :id)
 ORDER BY step

-- name: events_after
SELECT *
  FROM (SELECT steps.number, 'step', items.kind, items.name, items.owner,
               items.id, step, steps.state, steps.attempt, at, code, sentence, steps.cluster
          FROM steps JOIN items ON items.number = steps.item
         WHERE steps.number > :after
         ORDER BY steps.number
         LIMIT :limit)
UNION ALL
SELECT *
  FROM (SELECT decisions.number, 'decision', items.kind, items.name, items.owner,
               items.id, decisions.attempt, at, decisions.cluster, document, NULL, NULL, NULL
          FROM decisions JOIN items ON items.number = decisions.item
         WHERE decisions.number > :after
         ORDER BY decisions.number
         LIMIT :limit)
UNION ALL
SELECT *
  FROM (SELECT number, 'operation', '', '', '', what, subject, at, user, document, NULL, NULL, NULL
          FROM notes
         WHERE number > :after
         ORDER BY number
         LIMIT :limit)
 ORDER BY 1
 LIMIT :limit

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

-- name: output
SELECT digest
  FROM outputs
 WHERE item = (SELECT number FROM items WHERE id = ?) AND attempt = ?
 ORDER BY number

-- name: fleet
SELECT what, name, document FROM fleet ORDER BY what, name

-- name: settings
SELECT key, value FROM settings WHERE substr(key, 1, length(:prefix)) = :prefix ORDER BY key

-- name: expired
SELECT 1 FROM expired WHERE hash = ?

-- name: blob
SELECT data FROM blobs WHERE digest = ?

-- name: has_blob
SELECT 1 FROM blobs WHERE digest = ?

-- name: blob_bytes
SELECT coalesce(sum(bytes), 0) FROM blobs

-- name: blob_digests
SELECT digest FROM blobs WHERE data IS NULL

-- name: unused_blobs
SELECT digest
  FROM blobs
 WHERE NOT EXISTS (SELECT 1 FROM payloads WHERE payloads.digest = blobs.digest)
   AND NOT EXISTS (SELECT 1 FROM settings, json_each(CAST(settings.value AS TEXT), '$.payloads') AS held
                    WHERE settings.key GLOB 'deployment/*' AND held.value = blobs.digest)
   AND NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.digest = blobs.digest)
   AND NOT EXISTS (SELECT 1 FROM outputs WHERE outputs.digest = blobs.digest)

-- name: serving_tasks
SELECT number, id, model, owner, submitted_at, fingerprint, state, at, instances, document
  FROM serving_tasks
 WHERE number > ?
 ORDER BY number
 LIMIT ?
