"""Count words by map and reduce: each map gives one piece to each reducer, and nothing passes through the driver."""

from collections import Counter

import ray

REDUCERS = 3
TEXT = """
the quick brown fox jumps over the lazy dog
the dog barks and the fox runs over the hill
a lazy afternoon for the dog and a quick one for the fox
the end of the story of the fox and the dog
"""


@ray.remote
def split(lines, stop_words):
    pieces = [Counter() for _ in range(REDUCERS)]
    for line in lines:
        for word in line.split():
            if word not in stop_words:
                pieces[sum(word.encode()) % REDUCERS][word] += 1
    return pieces


@ray.remote
def merge(*pieces):
    counts = Counter()
    for piece in pieces:
        counts.update(piece)
    return counts


def main():
    ray.init()
    lines = [line for line in TEXT.splitlines() if line]
    stop_words = ray.put({"the", "a", "and", "of", "for"})
    maps = [split.options(num_returns=REDUCERS).remote([line], stop_words) for line in lines]
    reduced = [merge.remote(*[pieces[number] for pieces in maps]) for number in range(REDUCERS)]
    counts = Counter()
    unfinished = reduced
    while unfinished:
        done, unfinished = ray.wait(unfinished, num_returns=1, timeout=60)
        counts.update(ray.get(done[0]))
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:4]
    print(", ".join(f"{word} {number}" for word, number in best))
    ray.shutdown()


if __name__ == "__main__":
    main()
