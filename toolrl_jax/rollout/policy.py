"""The served parameters, in the forms that prefill and decode read.

From a parameter pytree to the same on the engine's devices, and its copy for
decoding. It knows nothing of requests.
"""

import functools
from typing import Any

import jax

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.rollout import placement

_unstack = jax.jit(
  decoder.unstack_layers, static_argnums=1, static_argnames="dtype"
)


class PolicyBox:
  """Holds the served parameters; JetStream's threads keep the box itself.

  Attributes:
    params: As they were given: prefill reads them.
    decode_params: What decoding reads: their copy with the layers taken
      apart and cast, or the same.
    version: Number of the policy.
    placed: Where the parameters lie, and what goes with them.
  """

  def __init__(
    self,
    params: decoder.Params,
    config: DecoderConfig,
    *,
    compute_dtype: Any,
    is_unstacked: bool,
  ):
    self.placed = placement.of_params(params, config)
    self._shardings = placement.shardings_of(params)
    self._unstack = (
      functools.partial(_unstack, dtype=compute_dtype) if is_unstacked else None
    )
    self._config = config
    self.replace(params, 0)

  def replace(self, params: decoder.Params, version: int) -> None:
    """Serves other parameters of the same shapes; nobody may read meanwhile."""
    # The old copy goes first: two may not fit.
    self.decode_params = None
    # No copy where they lie there already, but committed from now on: a
    # program compiles once for each kind of placement that it meets.
    self.params = jax.device_put(params, self._shardings)
    self.decode_params = (
      self.params
      if self._unstack is None
      else self._unstack(self.params, self._config)
    )
    self.version = version
