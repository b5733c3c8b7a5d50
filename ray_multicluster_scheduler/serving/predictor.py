"""Predicts how long a request takes on one instance: from a table, and from what was observed.

``LookupPredictor`` reads a table of quantiles. ``OnlinePredictor`` learns from completed requests per instance, per
hardware and per model, and corrects its stated quantiles until they hold. ``Predictor`` uses, for each key, whichever
of the two has been more accurate recently.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError

MAX_VALUE = 1e12
"""Of features, and of times in ms. Larger numbers would overflow the squares that are summed."""
LEVELS = (0.5, 0.9, 0.99)
"""The quantiles that are stated and corrected."""
_INFO_FIELDS = ("name", "hardware", "software_name", "software_version")
_MAX_FEATURES = 4
_MAX_BUCKETS = 1_000
_WINDOW = 40
"""Observations after which an older one has lost most of its weight."""
_FORGETTING = 1 - 1 / _WINDOW
_STEP = 0.08
"""Step size of the quantile correction, on a logarithmic scale."""
_MIN_SAMPLES = 10
"""Observations of an instance up to which those of all instances of the model count, too."""
_STALE_AFTER = 100
"""Requests to other instances after which what is known of an instance has lost half of its weight."""
_DEFAULT_CV = 0.5
"""Relative standard deviation before anything was observed."""
_TAIL_LEVEL = 0.999999


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of one request on one instance, in milliseconds."""

    mean_ms: float
    std_ms: float
    quantiles: tuple[tuple[float, float], ...] = ()
    """Pairs of level and time in units of ``scale``, by increasing level."""
    source: str = ""
    """Where it comes from: table, or observations of the instance, the hardware or the model."""
    scale: float = 1.0

    def quantile(self, level: float) -> float:
        """The time within which this share of such requests ends, interpolated between the stated ones."""
        return self.scale * interpolate(self.quantiles, level) if self.quantiles else self.mean_ms


def interpolate(points: Sequence[tuple[float, float]], level: float) -> float:
    """The value at a level, linear between points; beyond the last one the tail is exponential."""
    at = bisect_left(points, level, key=lambda point: point[0])
    if at < len(points) and (points[at][0] == level or at == 0):
        return points[at][1]
    if at == len(points):
        last, value = points[-1]
        return value + _tail_scale(points) * math.log((1 - last) / (1 - min(level, _TAIL_LEVEL)))
    (low, before), (high, after) = points[at - 1], points[at]
    return before + (after - before) * (level - low) / (high - low)


def _tail_scale(points: Sequence[tuple[float, float]]) -> float:
    """The scale of the exponential tail that continues the last two points."""
    if len(points) < 2:
        return 0.0
    (low, before), (high, after) = points[-2:]
    return (after - before) / math.log((1 - low) / (1 - high))


def moments(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation of the distribution with these quantiles, by integration over the levels."""
    level, value = points[0]
    mean, square = level * value, level * value * value
    for (low, before), (high, after) in itertools.pairwise(points):
        width = high - low
        mean += width * (before + after) / 2
        square += width * (before * before + before * after + after * after) / 3
    level, value = points[-1]
    scale = _tail_scale(points)
    mean += (1 - level) * (value + scale)
    square += (1 - level) * (value * value + 2 * value * scale + 2 * scale * scale)
    return mean, math.sqrt(max(0.0, square - mean * mean))


class LookupPredictor:
    """Predictions from a JSON file: a list of records as docs/lookup-predictor.md describes them.

    Raises ConfigurationError for a file that cannot be read or a record that makes no sense. Records whose ``status``
    is not "success" are skipped.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            records = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The prediction table {path} cannot be read: {error}.",
                next_step="give a JSON file with a list of records",
            ) from None
        if not isinstance(records, list):
            raise ConfigurationError(f"The prediction table {path} is not a list of records.")
        self._records = len(records)
        self._by_model: dict[str, list[tuple[dict[str, Any], Prediction]]] = {}
        self._usable = 0
        for index, record in enumerate(records):
            self._add(index, record)
        self._found: dict[tuple[str, tuple[Any, ...]], Prediction | None] = {}

    def _add(self, index: int, record: Any) -> None:
        if not isinstance(record, dict):
            raise ConfigurationError(f"{self.path}: record {index} is not an object.")
        if record.get("status", "success") != "success":
            return
        info = record.get("model_info") or {}
        if not isinstance(info, dict):
            raise ConfigurationError(f"{self.path}: the model_info of record {index} is not an object.")
        try:
            prediction = _prediction_of(record)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigurationError(
                f"{self.path}: record {index}: {error}.",
                next_step="give quantiles and quantile_predictions: increasing levels between 0 and 1, and times in ms",
            ) from None
        names = {str(name) for name in (record.get("model_type"), info.get("type")) if name}
        if not names:
            raise ConfigurationError(f"{self.path}: record {index} has neither model_type nor model_info.type.")
        self._usable += 1
        for name in names:
            self._by_model.setdefault(name, []).append((info, prediction))

    def predict(self, model_type: str, metadata: Mapping[str, Any]) -> Prediction | None:
        """The prediction of the best matching records; None if the table does not have the model.

        A record matches exactly if all its fields are those of ``metadata`` (name or model_name, hardware,
        software_name, software_version), partly if some are. Equally good records are averaged.
        """
        wanted = tuple(
            metadata.get(name, metadata.get("model_name") if name == "name" else None) for name in _INFO_FIELDS
        )
        key = (model_type, wanted)
        try:
            return self._found[key]
        except KeyError:
            pass
        except TypeError:  # an unhashable value in metadata matches nothing
            return self.predict(model_type, {})
        if len(self._found) > 10_000:
            self._found.clear()
        self._found[key] = found = self._match(model_type, wanted)
        return found

    def _match(self, model_type: str, wanted: tuple[Any, ...]) -> Prediction | None:
        best, matches = -1.0, list[Prediction]()
        for info, prediction in self._by_model.get(model_type, ()):
            score = _match_score(info, wanted)
            if score > best:
                best, matches = score, []
            if score == best:
                matches.append(prediction)
        return _mixture(matches) if matches else None

    def get_stats(self) -> dict[str, Any]:
        """How many records were read and are used, and for which models."""
        return {
            "total_records": self._records,
            "successful_records": self._usable,
            "model_types": sorted(self._by_model),
        }


def _match_score(info: Mapping[str, Any], wanted: Sequence[Any]) -> float:
    """The number of equal fields; the hardware counts more than all others."""
    return sum(
        4.0 if name == "hardware" else 1.0
        for name, value in zip(_INFO_FIELDS, wanted, strict=True)
        if value is not None and info.get(name) == value
    )


def _prediction_of(record: Mapping[str, Any]) -> Prediction:
    levels, values = record["quantiles"], record["quantile_predictions"]
    points = tuple((float(level), float(value)) for level, value in zip(levels, values, strict=True))
    if not points:
        raise ValueError("it has no quantiles")
    for (low, before), (high, after) in itertools.pairwise(points):
        if not (low < high and before <= after):
            raise ValueError("its quantiles do not increase")
    if not (points[0][0] > 0 and points[-1][0] < 1 and points[0][1] >= 0 and points[-1][1] <= MAX_VALUE):
        raise ValueError("its quantiles are out of range")
    mean, std = moments(points)
    if record.get("expect") is not None:
        mean, std = float(record["expect"]), float(record.get("error") or std)
    if not (0 <= mean <= MAX_VALUE and 0 <= std <= MAX_VALUE):
        raise ValueError(f"its expect and error are out of range: {mean:g} and {std:g} ms")
    return Prediction(mean, std, points, "table")


def _mixture(predictions: Sequence[Prediction]) -> Prediction:
    if len(predictions) == 1:
        return predictions[0]
    count = len(predictions)
    mean = sum(one.mean_ms for one in predictions) / count
    square = sum(one.mean_ms**2 + one.std_ms**2 for one in predictions) / count
    levels = sorted({level for one in predictions for level, _ in one.quantiles})
    points = tuple((level, sum(one.quantile(level) for one in predictions) / count) for level in levels)
    return Prediction(mean, math.sqrt(max(0.0, square - mean * mean)), points, "table")


# ---- learning


def features_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in the metadata of a request, which its duration may depend on; not those beyond ``MAX_VALUE``."""
    return {
        name: float(value)
        for name, value in metadata.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_VALUE <= value <= MAX_VALUE
    }


class LearnedTimes:
    """What was observed for one key (an instance, a hardware or a model): three estimators of the mean, of which the
    most accurate is used; the relative spread; and the corrections of the stated quantiles."""

    def __init__(self) -> None:
        self.count = 0
        self._seen_at = 0
        """The count of the model when this instance was last observed."""
        self._own_ms = self._usual_ms = 0.0
        """What the first requests took here, and what was expected of all instances for them."""
        self._names: tuple[str, ...] = ()
        self._average = _Average()
        self._buckets: dict[tuple[int, ...], _Average] = {}
        self._linear: _LinearModel | None = None
        self._errors = [_Error(), _Error(), _Error()]
        self._ratio_variance = _DEFAULT_CV**2
        self._shifts = [math.log(1 + _DEFAULT_CV) * (level - 0.5) * 2 for level in LEVELS]
        self._cv = _DEFAULT_CV
        self._relative_quantiles = _relative_quantiles(self._shifts)

    @property
    def square_error(self) -> float:
        """The recent mean squared error of the estimates, in ms²; infinite before there is one."""
        return min(one.value for one in self._errors)

    def estimate(self, features: Mapping[str, float]) -> float | None:
        """The mean time in ms; None if nothing was observed."""
        if not self.count:
            return None
        average, bucket, linear = (one.value for one in self._errors)
        value = self._bucket_mean(features) if bucket < average and bucket < linear else None
        if value is None and linear < average:
            value = self._linear_mean(features)
        return self._average.mean if value is None else min(value, MAX_VALUE)

    def compare(self, features: Mapping[str, float], actual: float, model: LearnedTimes) -> None:
        """Before an observation of this instance is added to either: how it compares with all instances."""
        self._seen_at = model.count
        usual = model.estimate(features) if self.count < _MIN_SAMPLES else None
        if usual is not None:
            self._own_ms += actual
            self._usual_ms += usual

    def estimate_within(self, features: Mapping[str, float], model: LearnedTimes) -> float | None:
        """As :meth:`estimate`, for an instance of which little or nothing recent is known: partly what is expected of
        all instances. Otherwise one that looked slow by chance would get no requests, and so would look slow forever.
        """
        own = self.estimate(features)
        known = min(self.count, _WINDOW) * math.exp2((self._seen_at - model.count) / _STALE_AFTER)
        if own is None or known >= _MIN_SAMPLES:
            return own
        usual = model.estimate(features)
        if usual is None:
            return own
        if self.count < _MIN_SAMPLES and self._usual_ms > 0:
            own = usual * self._own_ms / self._usual_ms  # a few requests show how fast it is, not how size matters
        weight = known * known / (known * known + 4)
        return weight * own + (1 - weight) * usual

    def predict(self, features: Mapping[str, float], source: str) -> Prediction | None:
        mean = self.estimate(features)
        return None if mean is None else self.around(mean, source)

    def around(self, mean: float, source: str) -> Prediction:
        """A prediction with this mean and the observed spread."""
        return Prediction(mean, mean * self._cv, self._relative_quantiles, source, scale=mean)

    def learn(self, features: Mapping[str, float], actual: float, predicted: float | None) -> None:
        """Add an observation; ``predicted`` is the mean that was stated for it before."""
        if predicted is not None and predicted > 0:
            self._correct(actual, predicted)
        values = (self._average.mean if self.count else None, self._bucket_mean(features), self._linear_mean(features))
        for error, value in zip(self._errors, values, strict=True):
            if value is not None:
                error.add(value - actual)
        self.count += 1
        self._average.add(actual)
        if features:
            self._learn_features(features, actual)

    def _correct(self, actual: float, predicted: float) -> None:
        ratio = actual / predicted
        weight = max(1 / (self.count + 1), 1 / _WINDOW)
        self._ratio_variance += weight * ((ratio - 1) ** 2 - self._ratio_variance)
        for index, level in enumerate(LEVELS):
            covered = ratio <= self._relative_quantiles[index][1]
            self._shifts[index] += _STEP * (level - covered)
        self._cv = math.sqrt(self._ratio_variance)
        self._relative_quantiles = _relative_quantiles(self._shifts)

    def _learn_features(self, features: Mapping[str, float], actual: float) -> None:
        names = tuple(sorted(features)[:_MAX_FEATURES])
        if names != self._names and not set(names) <= set(self._names):
            self._names, self._linear = tuple(sorted({*self._names, *names})[:_MAX_FEATURES]), None
            self._buckets.clear()
            self._errors[1], self._errors[2] = _Error(), _Error()
        if self._linear is None:
            self._linear = _LinearModel(len(self._names))
        self._linear.add(self._values(features), actual)
        bucket = self._bucket(features)
        if bucket not in self._buckets and len(self._buckets) >= _MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets.setdefault(bucket, _Average()).add(actual)

    def _values(self, features: Mapping[str, float]) -> list[float]:
        return [1.0, *(features.get(name, 0.0) for name in self._names)]

    def _bucket(self, features: Mapping[str, float]) -> tuple[int, ...]:
        return tuple(
            round(2 * math.copysign(math.log2(1 + abs(value)), value))
            for value in (features.get(name, 0.0) for name in self._names)
        )

    def _bucket_mean(self, features: Mapping[str, float]) -> float | None:
        bucket = self._buckets.get(self._bucket(features)) if self._names else None
        return bucket.mean if bucket is not None else None

    def _linear_mean(self, features: Mapping[str, float]) -> float | None:
        if self._linear is None or self._linear.count < len(self._names) + 2:
            return None
        value = self._linear.estimate(self._values(features))
        return value if value > 0 else None


def _relative_quantiles(shifts: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple((level, math.exp(shift)) for level, shift in zip(LEVELS, shifts, strict=True))


class _Average:
    """A mean in which old observations lose their weight."""

    __slots__ = ("count", "mean")

    def __init__(self) -> None:
        self.count, self.mean = 0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) * max(1 / self.count, 1 / _WINDOW)


class _Error:
    """A recent mean squared error; infinite before the first."""

    __slots__ = ("_average",)

    def __init__(self) -> None:
        self._average = _Average()

    @property
    def value(self) -> float:
        return self._average.mean if self._average.count else math.inf

    def add(self, difference: float) -> None:
        self._average.add(difference * difference)


class _LinearModel:
    """Least squares over decaying observations: time = weights · values. Errors count in proportion to the time."""

    __slots__ = ("_matrix", "_right", "_scales", "_weights", "count")

    def __init__(self, features: int) -> None:
        size = features + 1
        self.count = 0
        self._matrix = [[0.0] * size for _ in range(size)]
        self._right = [0.0] * size
        self._scales = [1.0] * size
        self._weights: list[float] | None = None
        """Solved when they are needed, and again after the next observation."""

    def add(self, values: Sequence[float], actual: float) -> None:
        if not self.count:
            self._scales = [abs(value) or 1.0 for value in values]
        self.count += 1
        importance = 1 / max(actual, 1e-3)
        scaled = [importance * value / scale for value, scale in zip(values, self._scales, strict=True)]
        for row, left in enumerate(scaled):
            self._right[row] = self._right[row] * _FORGETTING + left * importance * actual
            line = self._matrix[row]
            for column, right in enumerate(scaled):
                line[column] = line[column] * _FORGETTING + left * right
        self._weights = None

    def estimate(self, values: Sequence[float]) -> float:
        if self._weights is None:
            self._weights = _solve(self._matrix, self._right)
        return sum(
            weight * value / scale for weight, value, scale in zip(self._weights, values, self._scales, strict=True)
        )


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Gaussian elimination of a positive semi-definite system; a small ridge makes it solvable."""
    size = len(right)
    ridge = 1e-6 * sum(matrix[index][index] for index in range(size)) + 1e-30
    rows = [[*line, right[index]] for index, line in enumerate(matrix)]
    for index in range(size):
        rows[index][index] += ridge
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            if factor:
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution


@dataclass(slots=True)
class Accuracy:
    """How good the predictions of one model on one instance were."""

    count: int = 0
    relative_error: float = 0.0
    """Mean of |actual - predicted| / actual over the recent requests."""
    covered: float = 0.0
    """Share of the recent requests that ended within the stated p90."""

    def add(self, prediction: Prediction, actual: float) -> None:
        self.count += 1
        weight = max(1 / self.count, 1 / 300)
        self.relative_error += (abs(actual - prediction.mean_ms) / max(actual, 1e-3) - self.relative_error) * weight
        self.covered += ((actual <= prediction.quantile(0.9)) - self.covered) * weight


class Predictor:
    """Chooses between table and observations, learns from each completed request, and records its own accuracy."""

    def __init__(self, table: LookupPredictor | None = None) -> None:
        self.table = table
        self._learned: dict[tuple[str, str, str], LearnedTimes] = {}
        self._table_errors: dict[tuple[str, str], _Error] = {}
        self._accuracy: dict[tuple[str, str], Accuracy] = {}

    def predict(
        self,
        model: str,
        instance: str,
        hardware: Mapping[str, str],
        metadata: Mapping[str, Any],
        features: Mapping[str, float],
    ) -> Prediction | None:
        """The predicted time of a request; None if nothing is known of the model. ``hardware`` describes the instance
        as the table does: hardware, software_name, software_version. ``features`` are those of the metadata."""
        listed = self.table.predict(model, {**metadata, **hardware}) if self.table else None
        for source, key in _keys(model, instance, hardware):
            learned = self._learned.get(key)
            if learned is None or (source == "instance" and learned.count < 2):
                continue
            if source == "model" and listed is not None:
                break  # the table knows the hardware; observations of other hardware do not
            error = self._table_errors.get((model, instance))
            if listed is not None and error is not None and error.value <= learned.square_error:
                return learned.around(listed.mean_ms, "table") if learned.count >= _WINDOW else listed
            if source == "instance" and listed is None:
                mean = learned.estimate_within(features, self._learned[model, "", ""])
                return None if mean is None else learned.around(mean, source)
            return learned.predict(features, source)
        return listed

    def learn(
        self,
        model: str,
        instance: str,
        hardware: Mapping[str, str],
        metadata: Mapping[str, Any],
        features: Mapping[str, float],
        actual_ms: float,
        prediction: Prediction | None,
    ) -> None:
        """Record the actual time of a request, and the prediction on which it was placed."""
        if not 0 <= actual_ms <= MAX_VALUE:
            return
        actual_ms = max(actual_ms, 1e-3)  # charges are whole microseconds, and none may be zero
        if self.table is not None:
            listed = self.table.predict(model, {**metadata, **hardware})
            if listed is not None:
                self._table_errors.setdefault((model, instance), _Error()).add(listed.mean_ms - actual_ms)
        stated = prediction.mean_ms if prediction is not None else None
        all_instances = self._learned.get((model, "", ""))
        if all_instances is not None:
            self._learned.setdefault((model, instance, ""), LearnedTimes()).compare(features, actual_ms, all_instances)
        for _, key in _keys(model, instance, hardware):
            self._learned.setdefault(key, LearnedTimes()).learn(features, actual_ms, stated)
        if prediction is not None:
            self._accuracy.setdefault((model, instance), Accuracy()).add(prediction, actual_ms)

    def accuracy(self) -> Iterable[tuple[str, str, Accuracy]]:
        """Model, instance, and how good the predictions for it were."""
        return [(model, instance, one) for (model, instance), one in list(self._accuracy.items())]

    def accuracy_rows(self) -> list[dict[str, Any]]:
        """As :meth:`accuracy`, for statistics."""
        return [
            {
                "model": model,
                "instance": instance,
                "count": one.count,
                "relative_error": one.relative_error,
                "within_p90": one.covered,
            }
            for model, instance, one in self.accuracy()
        ]

    def forget_instance(self, instance: str) -> None:
        """Drop what was learned of an instance that was removed."""
        for learned in [key for key in self._learned if key[1] == instance]:
            del self._learned[learned]
        for key in [key for key in {*self._table_errors, *self._accuracy} if key[1] == instance]:
            self._table_errors.pop(key, None)
            self._accuracy.pop(key, None)


def _keys(model: str, instance: str, hardware: Mapping[str, str]) -> Iterable[tuple[str, tuple[str, str, str]]]:
    """Source and key of what may be known, the most specific one first."""
    yield "instance", (model, instance, "")
    if hardware.get("hardware"):
        yield "hardware", (model, "", hardware["hardware"])
    yield "model", (model, "", "")
