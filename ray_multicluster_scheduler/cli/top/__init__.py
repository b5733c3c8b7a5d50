"""The screen of `rmcs top`: state and drawing. Imported by `commands/top.py` only; start reading with `state.py`."""
