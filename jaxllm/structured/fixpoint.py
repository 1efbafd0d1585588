"""What follows from what, where that is circular."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable


def follows[Name: Hashable](goal: Name, holds: Callable[[Name, Callable[[Name], bool]], bool]) -> bool:
    """Whether ``goal`` is in the least set of names that ``holds``.

    holds: of a name and what says of another name whether it is known to be in the set; it may only become true as more
        names are. It is asked again of a name when one that it has looked up turns out to be in the set.
    """
    found: set[Name] = set()
    users: collections.defaultdict[Name, set[Name]] = collections.defaultdict(set)
    met, waiting = {goal}, [goal]

    def look_up(user: Name, name: Name) -> bool:
        users[name].add(user)
        if name not in met:
            met.add(name)
            waiting.append(name)
        return name in found

    while waiting and goal not in found:
        name = waiting.pop()
        if name not in found and holds(name, functools.partial(look_up, name)):
            found.add(name)
            waiting += users.pop(name, ())
    return goal in found
