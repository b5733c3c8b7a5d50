"""ChildRelay: an actor that passes a program's calls on to actors that were made inside its cluster."""

from __future__ import annotations

import asyncio
from typing import Any


class ChildRelay:
    """A program has one for each cluster from which it received such an actor. It keeps no state and holds no CPU."""

    async def call(self, child: Any, method: str, num_returns: int, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method. Calls reach ``child`` in the order in which they arrive here. Raises what the method raised,
        ActorDiedError."""
        made = type(child).method(child, method).options(num_returns=num_returns).remote(*args, **kwargs)
        if num_returns == 1:
            return await made
        return None if made is None else tuple([await one for one in made])

    async def ask(self, child: Any, question: str) -> Any:
        """Call a method of the handle itself, such as ``ready``."""
        answer = await asyncio.to_thread(getattr(type(child), question), child)
        return None if answer is child else answer
