"""Taking over the calls of a module from outside of everything that libraries put into it.

`module.forward` is theirs: diffusers and accelerate wrap it for caches and offloading, and put back what they remember
when they take a hook away, as group offloading does after its first pass and every loading of an adapter does. A
wrapper of ours in there is gone then, without a word. `Module.__call__` looks for `_compiled_call_impl` before it looks
for hooks and `forward`; `Module.compile` alone sets that, and nothing here calls it.
"""

from collections.abc import Callable
from typing import Any

import torch

Call = Callable[..., Any]


def wrap_calls(module: torch.nn.Module, replace: Callable[[Call], Call]) -> None:
    """Make `replace(call)` answer each call of the module from now on, where `call` is what has answered it so far: the
    hooks and `forward` as they are then. Copies of the module in other processes keep the original."""
    own = module._compiled_call_impl
    module._compiled_call_impl = replace(module._call_impl if own is None else own)
