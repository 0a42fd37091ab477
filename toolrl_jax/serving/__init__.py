"""The model behind HTTP, in the form of OpenAI's chat completions."""
