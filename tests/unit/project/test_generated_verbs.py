"""The generated verbs equal the output of scripts/generate_verbs.py."""

from __future__ import annotations

from tests.support.scripts import load_script


def test_generated_verbs_are_up_to_date() -> None:
    script = load_script("generate_verbs")
    for path, text in script.generated().items():
        assert path.read_text() == text, f"{path.name} is out of date: run python scripts/generate_verbs.py"
