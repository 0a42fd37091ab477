"""Presets and the mapping to and from a Hugging Face config."""

import pytest
import transformers

from toolrl_jax.model import layout, presets

# Parameters in all, from the model cards' tensor tables; a tied head counts
# once.
NUM_PARAMS = {
  "qwen2.5-0.5b": 494_032_768,
  "qwen2.5-1.5b": 1_543_714_304,
  "qwen2.5-3b": 3_085_938_688,
  "qwen2.5-7b": 7_615_616_512,
  "qwen3-0.6b": 596_049_920,
  "qwen3-1.7b": 1_720_574_976,
  "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360,
  "llama-3.2-1b": 1_235_814_400,
  "llama-3.2-3b": 3_212_749_824,
  "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", NUM_PARAMS)
def test_presets_have_the_released_number_of_parameters(name):
  assert layout.num_params(presets.lookup(name)) == NUM_PARAMS[name]


@pytest.mark.quick
@pytest.mark.parametrize("name", presets.PRESETS)
def test_to_hf_config_reads_back(name):
  config = presets.lookup(name)
  assert presets.from_hf_config(presets.to_hf_config(config, "float32")) == (
    config
  )


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen3-8b", "llama-3.1-8b"])
def test_to_hf_config_is_understood_by_transformers(name):
  config = presets.lookup(name)
  hf_config = presets.to_hf_config(config, "bfloat16")
  kind = transformers.AutoConfig.for_model(**hf_config)
  assert (
    type(kind).__name__
    == {
      "qwen2": "Qwen2Config",
      "qwen3": "Qwen3Config",
      "llama": "LlamaConfig",
    }[config.family]
  )
  assert kind.rope_parameters["rope_theta"] == config.rope_theta
  if config.rope_scaling is not None:
    assert kind.rope_parameters["rope_type"] == "llama3"
    assert kind.rope_parameters["factor"] == 8.0
    assert kind.rope_parameters["original_max_position_embeddings"] == 8192
  assert str(kind.dtype).endswith("bfloat16")
  # The newer form that `transformers` writes is read as well.
  assert presets.from_hf_config(kind.to_dict()) == config


def test_lookup_names_the_nearest():
  with pytest.raises(ValueError, match=r"did you mean 'qwen2.5-1.5b'"):
    presets.lookup("qwen25-1.5b")
  assert presets.lookup("Qwen3-0.6B").head_dim == 128


def test_from_hf_config_refuses_what_is_not_covered():
  good = presets.to_hf_config(presets.lookup("tiny-llama"), "float32")
  cases = {
    "MixtralForCausalLM": {
      "model_type": "mixtral",
      "architectures": ["MixtralForCausalLM"],
    },
    "hidden_act must be 'silu'": {"hidden_act": "gelu"},
    "attention_bias must be False": {"attention_bias": True},
    "quantization_config": {"quantization_config": {"bits": 4}},
    "'yarn'": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "lacks low_freq_factor, high_freq": {
      "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "original_max_position_embeddings": 8,
      }
    },
    "lacks hidden_size": {"hidden_size": None},
  }
  for words, change in cases.items():
    with pytest.raises(ValueError) as caught:
      presets.from_hf_config(good | change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_hf_config_takes_the_architectures_defaults():
  fields = presets.to_hf_config(presets.lookup("tiny-qwen2"), "float32")
  for key in ("rope_theta", "num_key_value_heads", "tie_word_embeddings"):
    fields.pop(key)
  config = presets.from_hf_config(fields)
  assert config.rope_theta == 10_000.0
  assert config.num_kv_heads == config.num_heads
  assert not config.is_tied
  assert config.head_dim == 8
  qwen3 = presets.to_hf_config(presets.lookup("tiny-qwen3"), "float32")
  qwen3.pop("head_dim")
  assert presets.from_hf_config(qwen3).head_dim == 128
