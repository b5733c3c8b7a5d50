-- Which item another one repeats.
ALTER TABLE items ADD COLUMN repeats TEXT;
CREATE INDEX items_by_repeats ON items (repeats, number) WHERE repeats IS NOT NULL;
