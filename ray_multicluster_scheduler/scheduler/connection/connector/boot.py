"""Starts the connector as a file, on an interpreter that does not have our package installed.

Only our package becomes importable: its folder may be in the site-packages of another Python, and nothing else from
there may be imported.
"""

import importlib.util
import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location(
    FOLDER.name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
)
assert spec is not None and spec.loader is not None  # noqa: PT018 # nosec B101 # the file is there: it is in the same folder
sys.modules[FOLDER.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module(f"{FOLDER.name}.scheduler.connection.connector", run_name="__main__", alter_sys=True)
