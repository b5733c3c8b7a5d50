"""The secrets of an item are covered in whatever is reported of it, also where they come in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription
from ray_multicluster_scheduler.common.redaction import MASKED, item_secrets, mask_stream, mask_values

COMMAND = 'sh -c "exit 3" --password=failing-entry-qqq --token=failtok-qqq'


def a_job(entrypoint: str = COMMAND, **values: object) -> TaskDescription:
    return TaskDescription(id="j", kind="job", name="j", job=JobDescription(entrypoint), **values)  # type: ignore[arg-type]


def test_those_of_a_job() -> None:
    env = {"env_vars": {"HF_TOKEN": "hf-abc", "PLAIN": "plain", "A_KEY": "abc"}, "pip": ["https://me:p%40ss@host/x"]}
    assert item_secrets(a_job(runtime_env=env)) == (
        "failing-entry-qqq",
        "failtok-qqq",
        *sorted({"p%40ss", "hf-abc"}, key=item_secrets(a_job(runtime_env=env)).index),
        "p@ss",
    ), "short ones are left"
    assert item_secrets(TaskDescription(id="t", kind="task", name="t")) == ()
    assert item_secrets(a_job("USE_AUTH=true python t.py")) == (), "yes and no are nobody's secret"


def test_item_secrets_of_each_part() -> None:
    output = f"Running entrypoint for job j-1: {COMMAND}\nfailing-entry-qqq was wrong"
    shown = mask_values(output, item_secrets(a_job()))
    assert shown == (
        f'Running entrypoint for job j-1: sh -c "exit 3" --password={MASKED} --token={MASKED}\n{MASKED} was wrong'
    )
    lines = TaskDescription(
        id="t", kind="task", name="t", runtime_env={"env_vars": {"A_KEY": "line-one-1\nline-two-2"}}
    )
    assert mask_values("> line-one-1\n> line-two-2 'line-one-1\\nline-two-2'", item_secrets(lines)) == (
        f"> {MASKED}\n> {MASKED} '{MASKED}'"
    )


async def _pieces(text: str, size: int) -> AsyncIterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 40, 1000])
async def test_in_pieces(size: int) -> None:
    output = f"a fail {COMMAND}\nfailing-entry-qq failing-entry-qqq end fail"
    secrets = item_secrets(a_job())
    reported = [one async for one in mask_stream(_pieces(output, size), secrets)]
    assert "".join(reported) == mask_values(output, secrets)
    assert "failing-entry-qqq" not in "".join(reported)
    assert all(reported)


async def test_one_of_many_that_is_cut_in_two() -> None:
    secrets = sorted((f"line {number} of a long credential {'x' * 40}" for number in range(600)), key=len, reverse=True)

    async def pieces() -> AsyncIterator[str]:
        yield "a line of an ordinary log\n" * 600 + secrets[5][:30]
        yield secrets[5][30:] + " end"

    reported = "".join([one async for one in mask_stream(pieces(), secrets)])
    assert reported.endswith(f"log\n{MASKED} end")
