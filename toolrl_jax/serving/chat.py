"""Chat requests to answers: the prompt, its samples, and their messages.

From a checked request to pieces of the answer as they come, and to the whole.
The prompt is made by the code that makes the prompts of training, the text is
read by the parser that scores training. The whole answer is its pieces added
up, so that streaming changes nothing. Knows no HTTP.
"""

import asyncio
import concurrent.futures
import copy
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

import transformers

from toolrl_jax import types
from toolrl_jax.data import prompt, templates
from toolrl_jax.model import text_stream
from toolrl_jax.parsing import tool_calls
from toolrl_jax.rollout import online
from toolrl_jax.rollout.request import RolloutError
from toolrl_jax.serving import answer, api_error, chat_request, history
from toolrl_jax.serving.api_error import ApiError

# Characters that normalization may make one of.
_MOST_COMPOSED = 4


class Manner(NamedTuple):
  """How the model is asked, and how it answers when a request does not say.

  Attributes:
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: Extra system text; empty is none.
    completion: Layout of the calls.
    temperature: Sampling temperature.
    top_p: Nucleus of every answer: the engine's.
  """

  template: templates.Template
  thinking: templates.Thinking
  system: str
  completion: tool_calls.Style
  temperature: float
  top_p: float


class Piece(NamedTuple):
  """What one choice gained.

  Attributes:
    choice: Its index.
    message: Its new thought and content; calls come with the last piece.
    finish: "stop", "length" or "tool_calls" with the last piece, else "".
  """

  choice: int
  message: answer.Message
  finish: str


class Choice(NamedTuple):
  """One whole answer."""

  message: answer.Message
  finish: str


class Usage(NamedTuple):
  """Tokens of a request: its prompt, and all choices with their end tokens."""

  num_prompt_tokens: int
  num_tokens: int


class Chat:
  """One request under way."""

  def __init__(
    self,
    generation: online.Generation,
    texts: Sequence[text_stream.TextStream],
    readers: Sequence[answer.AnswerReader],
    num_prompt_tokens: int,
  ):
    self._generation = generation
    self._texts, self._readers = texts, readers
    self._num_prompt_tokens = num_prompt_tokens
    self.num_choices = len(texts)

  async def pieces(self) -> AsyncIterator[Piece]:
    """Yields what the choices gain until all have ended.

    Raises:
      ApiError: The engine failed.
    """
    try:
      async for tokens in self._generation.tokens():
        piece = self._piece(tokens)
        if piece.finish or any(piece.message):
          yield piece
    except RolloutError as error:
      raise api_error.of_rollout(error) from error
    finally:
      self.cancel()

  async def whole(self) -> list[Choice]:
    """Returns the whole answers.

    Raises:
      ApiError: The engine failed.
    """
    choices = [Choice(answer.Message(), "")] * self.num_choices
    async for piece in self.pieces():
      before, new = choices[piece.choice].message, piece.message
      message = answer.Message(
        before.reasoning + new.reasoning,
        before.content + new.content,
        new.calls,
      )
      choices[piece.choice] = Choice(message, piece.finish)
    return choices

  def cancel(self) -> None:
    """Frees its rows; safe to repeat."""
    self._generation.cancel()

  @property
  def usage(self) -> Usage:
    """Tokens so far."""
    return Usage(
      self._num_prompt_tokens, sum(text.num_tokens for text in self._texts)
    )

  def _piece(self, tokens: online.Tokens) -> Piece:
    index = tokens.sample
    text, reader = self._texts[index], self._readers[index]
    is_end = tokens.finish is not None
    message = reader.feed(text.feed(tokens.token_ids, is_end=is_end))
    if text.is_stopped and not is_end:
      self._generation.cancel(index)
    if not (is_end or text.is_stopped):
      return Piece(index, message, "")
    rest = reader.finish()
    message = answer.Message(
      message.reasoning + rest.reasoning,
      message.content + rest.content,
      rest.calls,
    )
    finish = "tool_calls" if rest.calls else "stop"
    if tokens.finish == types.FINISH_LENGTH and not text.is_stopped:
      finish = "length"
    return Piece(index, message, finish)


class ChatService:
  """Opens chats on one model.

  Attributes:
    rollout: Admits prompts and runs them.
    manner: How the model is asked.
    end_ids: Tokens that end an answer.
  """

  def __init__(
    self,
    rollout: online.OnlineRollout,
    tokenizer: transformers.PreTrainedTokenizerBase,
    manner: Manner,
    *,
    end_ids: Sequence[int],
  ):
    """Keeps what requests are answered with.

    Args:
      rollout: Admits prompts and runs them.
      tokenizer: The checkpoint's, with its chat template.
      manner: How the model is asked.
      end_ids: Tokens that end an answer.
    """
    self.rollout = rollout
    self._tokenizer, self.manner, self.end_ids = tokenizer, manner, end_ids
    # A tokenizer is changed while it encodes: that is one thread's work, and
    # answers are decoded by a copy.
    self._decoding = copy.deepcopy(tokenizer.backend_tokenizer)
    self._encoding = concurrent.futures.ThreadPoolExecutor(1, "encode")
    # No token stands for more, and normalization to composed characters makes
    # text at most so much shorter.
    self._most_characters = (
      _MOST_COMPOSED
      * max(map(len, tokenizer.get_vocab()))
      * rollout.max_prompt_tokens
    )

  async def open(self, request: chat_request.ChatRequest) -> Chat:
    """Starts the samples of a request.

    Args:
      request: A checked request.

    Returns:
      The chat; who leaves before its end cancels it.

    Raises:
      ApiError: It cannot be served, or not now.
    """
    manner = self.manner
    if request.top_p not in (None, manner.top_p):
      raise ApiError(
        400,
        f"top_p is {manner.top_p} for all requests of this server, which is "
        "started with it; leave it out.",
        param="top_p",
        code="unsupported_value",
      )
    if self.rollout.is_draining:
      raise ApiError(503, "the server is shutting down.", code="shutting_down")
    num_choices = request.n or 1
    try:
      # A prompt that waits to be encoded has its place taken already.
      with self.rollout.place_held(num_choices):
        example = history.example(request)
        self._check_length(
          str(message["content"])
          for message in example.messages
          if message["role"] != "assistant"
        )
        prompt_ids = await asyncio.get_running_loop().run_in_executor(
          self._encoding, self.encode, example
        )
      generation = self.rollout.start(
        prompt_ids,
        num_samples=num_choices,
        max_tokens=request.limit,
        temperature=(
          manner.temperature
          if request.temperature is None
          else request.temperature
        ),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
      )
    except (online.RequestError, RolloutError) as error:
      raise api_error.of_rollout(error) from error
    return Chat(
      generation,
      [self.open_text(request.stops) for _ in range(num_choices)],
      [
        answer.AnswerReader(
          manner.completion, is_call_wanted=request.is_tools_shown
        )
        for _ in range(num_choices)
      ],
      len(prompt_ids),
    )

  def encode(self, example: types.Example) -> list[int]:
    """Returns the prompt of a history; what a template refuses is status 400.

    Raises:
      ApiError: The history cannot be shown under the template.
    """
    manner = self.manner
    try:
      return prompt.encode(
        example,
        self._tokenizer,
        template=manner.template,
        thinking=manner.thinking,
        system=manner.system,
      )
    except (
      ValueError, TypeError, KeyError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
      # A tool's document may be any JSON, and templates read it as a schema.
      is_told = isinstance(error, templates.RowError)
      reason = str(error) if is_told else type(error).__name__
      raise ApiError(
        400,
        f"the messages and tools cannot be shown to the model: "
        f"{' '.join(reason.split())[:200]}; check that the parameters of each "
        "tool are the JSON schema of an object.",
        param="messages",
      ) from error

  async def encode_text(self, text: str) -> list[int]:
    """Returns the tokens of a rendered prompt, special tokens included.

    Raises:
      PromptTooLongError: So many characters cannot be few enough tokens.
    """
    self._check_length([text])
    loop = asyncio.get_running_loop()
    encode = lambda: self._tokenizer(text, add_special_tokens=False)
    encoded = await loop.run_in_executor(self._encoding, encode)
    return encoded["input_ids"]

  def _check_length(self, texts: Iterable[str]) -> None:
    """Refuses what would hold the encoder up only to be refused."""
    num_characters = sum(map(len, texts))
    if num_characters > self._most_characters:
      raise online.PromptTooLongError(
        f"a prompt must have at most {self.rollout.max_prompt_tokens} tokens, "
        f"got {num_characters} characters."
      )

  def open_text(self, stops: Sequence[str] = ()) -> text_stream.TextStream:
    """Returns the text of a new answer."""
    return text_stream.TextStream(
      self._decoding, end_ids=self.end_ids, stops=stops
    )

  def close(self) -> None:
    """Ends the encoding thread."""
    self._encoding.shutdown(wait=False, cancel_futures=True)
