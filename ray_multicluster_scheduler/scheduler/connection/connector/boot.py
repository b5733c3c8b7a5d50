"""The connector's first lines: run as a file, by an interpreter that does not know our package.

Only this one package is made known to it. The folder that it is in may be the site-packages of another Python, and
nothing else from there may be imported.
"""

import importlib.util
import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location(
    FOLDER.name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
)
assert spec is not None and spec.loader is not None  # noqa: PT018 # nosec B101 # the file is there: we are beside it
sys.modules[FOLDER.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module(f"{FOLDER.name}.scheduler.connection.connector", run_name="__main__", alter_sys=True)
