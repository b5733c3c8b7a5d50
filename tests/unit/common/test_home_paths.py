"""Paths under a user's home directory are converted for the item's cluster."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.home_paths import find_home_paths, find_in_arguments, move_home_paths

HOMES = ["/home/alice", "/Users/alice"]


def moved(value: Any, homes: list[str] | None = None, target: str | None = "/Users/alice") -> Any:
    return move_home_paths(value, HOMES if homes is None else homes, target, words=True)[0]


class TestArguments:
    @pytest.mark.parametrize(
        "value", [PurePosixPath("/home/alice/x"), "/home/alice/x", ["/home/alice/x"], {"a": ("/home/alice/x",)}]
    )
    def test_wherever_a_path_is_it_is_found(self, value: Any) -> None:
        assert find_in_arguments((1, value), {}, HOMES) == ("/home/alice/x",)
        assert find_in_arguments((), {"b": b"", "a": value}, HOMES) == ("/home/alice/x",)
        assert find_in_arguments((value, "/home/alice/y"), {}, HOMES, 1) == ("/home/alice/x",)

    def test_value_without_home_path(self) -> None:
        assert find_in_arguments((1, None, "text", b"/home/alice", object(), "a/b"), {"a": 2.5}, HOMES) == ()
        assert find_in_arguments((), {}, HOMES) == ()


class TestWholeTexts:
    """Arguments of tasks: only a text that is a path as a whole is moved, prose is left alone."""

    @pytest.mark.parametrize("text", ["see /home/alice/x", "a=/home/alice", "/home/alice2", "/home/bob", ""])
    def test_leaves_alone(self, text: str) -> None:
        value, changes = move_home_paths(text, HOMES, "/Users/alice")
        assert value is text
        assert changes == []

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("/home/alice", "/Users/alice"),
            ("/home/alice/my dir/x: y", "/Users/alice/my dir/x: y"),
            ("/home/alice/two\nlines", "/Users/alice/two\nlines"),
        ],
    )
    def test_moves(self, text: str, expected: str) -> None:
        assert move_home_paths(text, HOMES, "/Users/alice")[0] == expected

    def test_finding_names_the_paths_and_stops_at_the_limit(self) -> None:
        arguments = (("/home/alice/a", 3, "no/path"), {"x": ["/Users/alice/b"], "y": "see /home/alice"})
        assert find_home_paths(arguments, HOMES) == ("/home/alice/a", "/Users/alice/b")
        assert find_home_paths([f"/home/alice/{n}" for n in range(50)], HOMES, limit=3) == (
            "/home/alice/0",
            "/home/alice/1",
            "/home/alice/2",
        )


class TestWords:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("/home/alice", "/Users/alice"),
            ("/home/alice/", "/Users/alice/"),
            ("/home/alice/data/x.csv", "/Users/alice/data/x.csv"),
            ("python /home/alice/train.py", "python /Users/alice/train.py"),
            (
                "python x.py --data=/home/alice/d --out /home/alice/o",
                "python x.py --data=/Users/alice/d --out /Users/alice/o",
            ),
            ("cd '/home/alice/my dir' && ls", "cd '/Users/alice/my dir' && ls"),
            ('cat "/home/alice/x"', 'cat "/Users/alice/x"'),
            ("P=/home/alice/a:/home/alice/b python x", "P=/Users/alice/a:/Users/alice/b python x"),
            ("(cd /home/alice; ls)>/home/alice/log", "(cd /Users/alice; ls)>/Users/alice/log"),
            ("cat /home/alice/my\\ file", "cat /Users/alice/my\\ file"),
        ],
    )
    def test_moves(self, text: str, expected: str) -> None:
        assert moved(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "/home/alice2/x",
            "/home/alice-old/x",
            "/home/alice.bak",
            "/mnt/home/alice/x",
            "file:///home/alice/x",
            "s3://bucket/home/alice/x",
            "home/alice/x",
            "/home/bob/x",
            "/Users/alice/x",
            "",
        ],
    )
    def test_leaves_alone(self, text: str) -> None:
        value, changes = move_home_paths(text, HOMES, "/Users/alice", words=True)
        assert value is text
        assert changes == []

    def test_without_a_target_nothing_moves(self) -> None:
        assert move_home_paths("/home/alice/x", HOMES, None) == ("/home/alice/x", [])

    def test_containers_are_searched_and_types_kept(self) -> None:
        value = {"a": ["/home/alice/x", 3], "b": ("/home/alice", b"/home/alice"), "/home/alice": None}
        assert moved(value) == {"a": ["/Users/alice/x", 3], "b": ("/Users/alice", b"/home/alice"), "/home/alice": None}
        assert moved(PurePosixPath("/home/alice/x")) == PurePosixPath("/Users/alice/x")

    def test_what_holds_no_path_is_the_same_object(self) -> None:
        value: dict[str, Any] = {"a": [1, "x/y", ("z",)], "b": object()}
        assert moved(value) is value

    def test_the_input_is_not_changed(self) -> None:
        value = {"a": ["/home/alice/x"]}
        moved(value)
        assert value == {"a": ["/home/alice/x"]}

    def test_a_list_inside_itself_ends(self) -> None:
        loop: list[Any] = ["/home/alice/x"]
        loop.append(loop)
        assert moved(loop)[0] == "/Users/alice/x"

    def test_the_same_value_twice_is_moved_twice(self) -> None:
        shared = ["/home/alice"]
        assert moved([shared, shared]) == [["/Users/alice"], ["/Users/alice"]]

    def test_changes_are_returned_once_with_the_whole_path(self) -> None:
        _, changes = move_home_paths(
            ["run /home/alice/x.py", "/home/alice/x.py", "/home/alice"], HOMES, "/Users/alice", words=True
        )
        assert changes == [("/home/alice/x.py", "/Users/alice/x.py"), ("/home/alice", "/Users/alice")]

    def test_of_nested_homes_the_innermost_is_meant(self) -> None:
        homes = ["/data", "/data/alice"]
        assert moved("/data/alice/x", homes, "/h") == "/h/x"
        assert moved("/data/bob", homes, "/h") == "/h/bob"

    def test_a_target_inside_another_home_is_stable(self) -> None:
        assert moved("/home/alice/work/x", ["/home/alice"], "/home/alice/work") == "/home/alice/work/x"
        assert moved("/home/alice/x", ["/home/alice"], "/home/alice/work") == "/home/alice/work/x"

    def test_slashes_at_the_end_of_homes_do_not_matter(self) -> None:
        assert moved("/home/alice/x", ["/home/alice/", "", "/"], "/Users/alice/") == "/Users/alice/x"

    @given(st.lists(st.sampled_from([*HOMES, "/x", " ", "=", ":", "a", "/home/alice/b", "'", "-", "."]), max_size=12))
    def test_moving_twice_is_moving_once(self, parts: list[str]) -> None:
        once = moved("".join(parts))
        assert moved(once) == once
