"""Predicted times: from a table, from observations, and the choice between the two."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.serving import LookupPredictor, Prediction
from ray_multicluster_scheduler.serving.predictor import LearnedTimes, Predictor, features_of, moments

LEVELS = [0.25, 0.5, 0.75, 0.99]


def record(values: list[float], **fields: Any) -> dict[str, Any]:
    info = {key: fields.pop(key) for key in ("hardware", "software_name", "software_version", "name") if key in fields}
    return {
        "status": "success",
        "model_type": "ocr",
        "model_info": {"type": "rec.ocr", **info},
        "quantiles": LEVELS,
        "quantile_predictions": values,
        **fields,
    }


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def make(*records: Any) -> LookupPredictor:
        path = tmp_path / "pred.json"
        path.write_text(json.dumps(records))
        return LookupPredictor(path)

    return make


def test_the_record_of_the_same_hardware_is_used(table: Any) -> None:
    predictor = table(
        record([10, 20, 30, 90], hardware="a100"),
        record([100, 200, 300, 900], hardware="t4"),
        record([11, 21, 31, 91], hardware="a100", software_version="2"),
    )
    assert predictor.predict("ocr", {"hardware": "t4"}).quantile(0.5) == 200
    assert predictor.predict("ocr", {"hardware": "a100", "software_version": "2"}).quantile(0.5) == 21
    assert predictor.predict("rec.ocr", {"hardware": "t4"}).quantile(0.5) == 200, "by model_info.type, too"


def test_without_a_better_match_all_records_of_the_model_are_averaged(table: Any) -> None:
    predictor = table(record([10, 20, 30, 90], hardware="a"), record([30, 40, 50, 110], hardware="b"))
    assert predictor.predict("ocr", {}).quantile(0.5) == 30
    assert predictor.predict("ocr", {"hardware": "unknown"}).quantile(0.5) == 30
    assert predictor.predict("ocr", {"hardware": ["no", "text"]}).quantile(0.5) == 30
    assert predictor.predict("another", {}) is None


def test_quantiles_are_interpolated(table: Any) -> None:
    prediction = table(record([10, 20, 30, 90])).predict("ocr", {})
    assert prediction.quantile(0.5) == 20
    assert prediction.quantile(0.625) == 25
    assert prediction.quantile(0.1) == 10
    assert prediction.quantile(0.999) > 90


def test_the_mean_is_integrated_and_not_the_mean_of_the_quantile_values(table: Any) -> None:
    """For an exponential distribution, whose quantiles are known exactly."""
    levels = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    values = [-100 * math.log(1 - level) for level in levels]
    prediction = table({"model_type": "ocr", "quantiles": levels, "quantile_predictions": values}).predict("ocr", {})
    assert prediction.mean_ms == pytest.approx(100, rel=0.05)
    assert prediction.std_ms == pytest.approx(100, rel=0.05)
    assert sum(values) / len(values) == pytest.approx(138, rel=0.05)


def test_expect_and_error_of_a_record_are_used_as_they_are(table: Any) -> None:
    prediction = table(record([10, 20, 30, 90], expect=33.0, error=7.0)).predict("ocr", {})
    assert (prediction.mean_ms, prediction.std_ms) == (33.0, 7.0)


def test_statistics_count_failed_records_separately(table: Any) -> None:
    predictor = table(record([1, 2, 3, 4]), {"status": "error", "model_type": "x"})
    assert predictor.get_stats() == {
        "total_records": 2,
        "successful_records": 1,
        "model_types": ["ocr", "rec.ocr"],
    }


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "{}",
        "[1]",
        json.dumps([record([4, 3, 2, 1])]),
        json.dumps([record([1, 2, 3])]),
        json.dumps([record([-1, 2, 3, 4])]),
        json.dumps([{"quantiles": [0.5], "quantile_predictions": [1]}]),
        json.dumps([{"model_type": "x"}]),
        json.dumps([{"model_type": "x", "quantiles": [0.5, 1.0], "quantile_predictions": [1, 2]}]),
        json.dumps([{"model_type": "x", "quantiles": [], "quantile_predictions": []}]),
        json.dumps([{"model_type": "x", "quantiles": "abc", "quantile_predictions": [1, 2, 3]}]),
    ]
    + [json.dumps([{**record([1, 2, 3, 4]), "expect": one}]) for one in (math.nan, math.inf, -1, 10**400, [1])]
    + [json.dumps([{**record([1, 2, 3, 4]), "expect": 1, "error": one}]) for one in (math.nan, math.inf, -1)]
    + [json.dumps([{**record([1, 2, 3, 4]), "model_info": one}]) for one in ([1], "x", 7)]
    + [json.dumps([record([1, 2, 3, one])]) for one in (math.nan, math.inf, 1e300, 10**400)]
    + [json.dumps([{"model_type": "x", "quantiles": [1e-20, 2e-20], "quantile_predictions": [1, 2]}])],
)
def test_a_wrong_table_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pred.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"pred\.json"):
        LookupPredictor(path)


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.json"):
        LookupPredictor(tmp_path / "none.json")


def test_moments_of_one_quantile() -> None:
    assert moments([(0.5, 10.0)]) == (10.0, 0.0)


# ---- learning


def learn(
    predictor: Predictor, actual: float, metadata: dict[str, Any], instance: str = "i", **hardware: str
) -> Prediction | None:
    features = features_of(metadata)
    before = predictor.predict("m", instance, hardware, metadata, features)
    predictor.learn("m", instance, hardware, metadata, features, actual, before)
    return before


def test_features_are_the_finite_numbers() -> None:
    assert features_of({"a": 1, "b": 2.5, "c": "x", "d": True, "e": math.inf, "f": None}) == {"a": 1.0, "b": 2.5}


def test_no_prediction_for_an_unknown_model() -> None:
    assert Predictor().predict("m", "i", {}, {}, {}) is None


def test_a_new_instance_is_predicted_from_its_hardware_and_then_from_its_model() -> None:
    predictor = Predictor()
    for _ in range(5):
        learn(predictor, 10.0, {}, "fast", hardware="a100")
        learn(predictor, 100.0, {}, "slow", hardware="t4")
    new = predictor.predict("m", "new", {"hardware": "t4"}, {}, {})
    unknown = predictor.predict("m", "new", {}, {}, {})
    assert new is not None
    assert unknown is not None
    assert new.mean_ms == pytest.approx(100)
    assert new.source == "hardware"
    assert 10 < unknown.mean_ms < 100
    assert unknown.source == "model"


def test_the_time_is_learned_as_a_function_of_the_features() -> None:
    rng = random.Random(3)
    predictor = Predictor()
    for _ in range(100):
        tokens, images = rng.randint(1, 1000), rng.randint(0, 4)
        learn(predictor, 5 + 0.2 * tokens + 30 * images, {"tokens": tokens, "images": images})
    found = predictor.predict("m", "i", {}, {}, {"tokens": 5000.0, "images": 2.0})
    assert found is not None
    assert found.mean_ms == pytest.approx(5 + 1000 + 60, rel=0.01)
    assert found.std_ms < 0.1 * found.mean_ms


def test_a_function_that_is_not_linear_is_learned_in_steps() -> None:
    rng = random.Random(4)
    predictor = Predictor()
    times = {1: 10.0, 100: 500.0, 10_000: 20.0}
    for _ in range(300):
        kind = rng.choice(list(times))
        learn(predictor, times[kind], {"kind": kind})
    for kind, time in times.items():
        found = predictor.predict("m", "i", {}, {}, {"kind": float(kind)})
        assert found is not None
        assert found.mean_ms == pytest.approx(time, rel=0.1)


def test_a_feature_that_appears_later_is_learned_too() -> None:
    predictor = Predictor()
    for _ in range(20):
        learn(predictor, 10.0, {})
    for index in range(200):
        learn(predictor, 10.0 + index % 7, {"size": index % 7})
    found = predictor.predict("m", "i", {}, {}, {"size": 3.0})
    assert found is not None
    assert found.mean_ms == pytest.approx(13, rel=0.05)


def test_a_good_table_is_used_until_observations_are_better(table: Any) -> None:
    predictor = Predictor(table(record([40, 50, 60, 80], hardware="h") | {"model_type": "m"}))
    sources = []
    for _ in range(30):
        before = learn(predictor, 150.0, {}, hardware="h")
        assert before is not None
        sources.append(before.source)
    assert sources[0] == "table"
    assert sources[-1] == "instance"
    found = predictor.predict("m", "i", {"hardware": "h"}, {}, {})
    assert found is not None
    assert found.mean_ms == pytest.approx(150)


def test_an_exact_table_stays_in_use(table: Any) -> None:
    rng = random.Random(5)
    predictor = Predictor(table(record([49, 50, 51, 53], hardware="h") | {"model_type": "m"}))
    for _ in range(200):
        learn(predictor, rng.choice([50.0]), {}, hardware="h")
    found = predictor.predict("m", "i", {"hardware": "h"}, {}, {})
    assert found is not None
    assert found.mean_ms == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.5])
def test_the_stated_p90_holds_also_after_the_instance_becomes_three_times_slower(cv: float) -> None:
    """Within 300 completions, and within 200 after the change: 85 to 95 % of requests are within the stated p90."""
    found: dict[str, list[bool]] = {"first": [], "settled": [], "slower": []}
    for seed in range(20):
        rng = random.Random(seed)
        predictor = Predictor()
        spread = math.log1p(cv * cv)
        for index in range(700):
            actual = 50 * math.exp(rng.gauss(-spread / 2, math.sqrt(spread))) * (3 if index >= 500 else 1)
            before = learn(predictor, actual, {})
            if before is not None:
                part = "first" if index < 300 else "settled" if index < 500 else "slower"
                found[part].append(actual <= before.quantile(0.9))
    for part, within in found.items():
        assert 0.85 <= sum(within) / len(within) <= 0.95, part


def test_accuracy_is_recorded_by_model_and_instance() -> None:
    predictor = Predictor()
    for _ in range(50):
        learn(predictor, 20.0, {})
    ((model, instance, accuracy),) = predictor.accuracy()
    assert (model, instance, accuracy.count) == ("m", "i", 49)
    assert accuracy.relative_error < 0.01
    assert accuracy.covered > 0.8
    predictor.forget_instance("i")
    assert not list(predictor.accuracy())
    assert predictor.predict("m", "i", {}, {}, {}) is not None, "what was learned of the model stays"


def test_estimates_are_never_negative() -> None:
    times = LearnedTimes()
    for size in range(1, 40):
        times.learn({"size": float(size)}, 1000.0 / size, None)
    assert all((times.estimate({"size": float(size)}) or 0) > 0 for size in (0, 50, 10_000))


@pytest.mark.parametrize("hostile", [math.nan, math.inf, 1e308, 10**400])
def test_hostile_numbers_do_not_spoil_what_was_learned(hostile: Any) -> None:
    """In the metadata of a request, and as the reported time."""
    rng = random.Random(7)
    predictor = Predictor()
    for index in range(200):
        size = rng.randint(1, 100)
        learn(predictor, 10.0 * size, {"size": size})
        if index % 20 == 10:
            learn(predictor, 10.0 * size, {"size": hostile})
            learn(predictor, hostile, {"size": size})
    for size in (3, 30, 1e12):
        found = predictor.predict("m", "i", {}, {}, {"size": float(size)})
        assert found is not None
        assert found.mean_ms == pytest.approx(min(10.0 * size, 1e12), rel=0.2)
        assert math.isfinite(found.std_ms**2)


def test_an_instance_whose_first_requests_were_large_is_not_taken_for_slow() -> None:
    predictor = Predictor()
    for size in (1.0, 2.0, 3.0, 4.0, 5.0):
        predictor.learn("ocr", "a", {}, {}, {"size": size}, 10 * size, None)
    for size in (50.0, 60.0):  # twice as fast, but it got the large ones
        predictor.learn("ocr", "b", {}, {}, {"size": size}, 5 * size, None)
    small = predictor.predict("ocr", "b", {}, {}, {"size": 2.0})
    assert small is not None
    assert small.mean_ms < 20


def test_what_is_known_of_an_instance_loses_weight_while_others_serve() -> None:
    predictor = Predictor()
    for _ in range(3):
        predictor.learn("ocr", "a", {}, {}, {}, 20.0, None)
        predictor.learn("ocr", "b", {}, {}, {}, 400.0, None)
    before = predictor.predict("ocr", "b", {}, {}, {})
    for _ in range(600):
        predictor.learn("ocr", "a", {}, {}, {}, 20.0, None)
    after = predictor.predict("ocr", "b", {}, {}, {})
    assert before is not None
    assert after is not None
    assert before.mean_ms > 200
    assert after.mean_ms < 40
