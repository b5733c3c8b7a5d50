-- name: lead
UPDATE leader
   SET next_fence = max(next_fence, :next_fence), last_number = max(last_number, :last_number)
 WHERE epoch = :epoch

-- name: new_item
INSERT INTO items (id, number, kind, name, owner, submitted_at, description,
                   state, attempt, cluster, fence, priority, finished_at, rest, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, 'PENDING', 0, NULL, NULL, 0, NULL, x'7b7d', ?)

-- name: item_now
UPDATE items
   SET state = ?, attempt = ?, cluster = ?, fence = ?, priority = ?, finished_at = ?, rest = ?, epoch = ?
 WHERE id = ?

-- name: step
INSERT INTO steps (number, item, step, state, attempt, at, code, sentence, cluster, epoch)
VALUES (?, (SELECT number FROM items WHERE id = ?), ?, ?, ?, ?, ?, ?, ?, ?)

-- name: decision
INSERT INTO decisions (number, item, attempt, at, cluster, document, epoch)
VALUES (?, (SELECT number FROM items WHERE id = ?), ?, ?, ?, ?, ?)

-- name: outcome
INSERT OR REPLACE INTO outcomes (item, attempt, document, digest, epoch)
VALUES ((SELECT number FROM items WHERE id = ?), ?, ?, ?, ?)

-- name: payload
INSERT OR IGNORE INTO payloads (item, digest) VALUES (?, ?)

-- name: blob
INSERT OR IGNORE INTO blobs (digest, bytes, data) VALUES (?, ?, ?)

-- name: forget_fleet
DELETE FROM fleet

-- name: fleet
INSERT INTO fleet (what, name, document, epoch) VALUES (?, ?, ?, ?)
