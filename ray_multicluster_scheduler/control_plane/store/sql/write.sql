-- name: take_over
UPDATE leader SET epoch = epoch + 1
RETURNING control_plane, epoch, last_told

-- name: lead
UPDATE leader
   SET next_fence = max(next_fence, :next_fence), last_number = max(last_number, :last_number),
       last_told = :last_told
 WHERE epoch = :epoch

-- name: new_item
INSERT INTO items (id, number, kind, name, owner, submitted_at, description, key, repeats,
                   state, attempt, cluster, fence, priority, finished_at, owed, rest, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'PENDING', 0, NULL, NULL, 0, NULL, 1, x'7b7d', ?)

-- name: item_status
UPDATE items
   SET state = ?, attempt = ?, cluster = ?, fence = ?, priority = ?, finished_at = ?, owed = ?, rest = ?, epoch = ?
 WHERE id = ?

-- name: step
INSERT INTO steps (number, item, step, state, attempt, at, code, sentence, cluster, epoch)
VALUES (?, (SELECT number FROM items WHERE id = ?), ?, ?, ?, ?, ?, ?, ?, ?)

-- name: decision
INSERT INTO decisions (number, item, attempt, at, cluster, document, epoch)
VALUES (?, (SELECT number FROM items WHERE id = ?), ?, ?, ?, ?, ?)

-- name: operation
INSERT INTO notes (number, what, subject, at, user, document, epoch) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: outcome
INSERT OR REPLACE INTO outcomes (item, attempt, document, digest, epoch)
SELECT number, ?, ?, ?, ? FROM items WHERE id = ?

-- name: output
INSERT INTO outputs (item, attempt, digest, epoch)
SELECT number, ?, ?, ? FROM items WHERE id = ?

-- name: payload
INSERT INTO payloads (item, position, digest) VALUES (?, ?, ?)

-- name: blob
INSERT OR IGNORE INTO blobs (digest, bytes, data) VALUES (?, ?, ?)

-- name: putter
INSERT OR IGNORE INTO putters (digest, user) VALUES (?, ?)

-- name: delete_fleet
DELETE FROM fleet

-- name: fleet
INSERT INTO fleet (what, name, document, epoch) VALUES (?, ?, ?, ?)

-- name: setting
INSERT OR REPLACE INTO settings (key, value, epoch) VALUES (?, ?, ?)

-- name: delete_setting
DELETE FROM settings WHERE key = ?

-- name: delete_serving_task
DELETE FROM serving_tasks WHERE id = ?

-- name: serving_task
INSERT INTO serving_tasks (id, model, owner, submitted_at, fingerprint, state, at, instances, document, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: serving_status
UPDATE serving_tasks
   SET epoch = ?, state = ?, at = ?, instances = ?, document = coalesce(?, document)
 WHERE id = ?
