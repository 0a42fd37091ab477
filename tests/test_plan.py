"""The command that plans a slice: its mistakes, its figures, its table."""

import importlib.util
import json
import os
import select
import sys
import termios

import jax
import pytest

from configs import common
from toolrl_jax import footprint, lowering, plan, step_bound
from toolrl_jax.model import flops, presets

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="needs libtpu, the extra `plan`",
)


@pytest.fixture
def arguments(root_dir):
  """Arguments of a plan of the smallest preset, with changes."""

  def make(topology="v5e:2x2", **changes) -> list[str]:
    fields = {
      "model.path": "tiny-qwen2",
      "data.train_path": "synthetic:8",
      "data.max_prompt_tokens": 128,
      "sampler.prompts_per_step": 8,
      "rollout.max_completion_tokens": 128,
      "rollout.slots": 8,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return [
      "toolrl-plan",
      f"--config={root_dir / 'configs' / 'common.py'}",
      f"--topology={topology}",
      *(f"--config.{name}={value}" for name, value in fields.items()),
    ]

  return make


def _complaint(capsys, argv) -> str:
  with pytest.raises(SystemExit) as caught:
    plan.run(argv)
  assert caught.value.code == 2
  said = capsys.readouterr()
  assert said.out == ""
  assert said.err.startswith("toolrl-plan: ")
  assert said.err.count("\n") == 1
  return said.err


@pytest.mark.parametrize(
  "name", ["v9:4x4", "v5e", "v5e:", "v5e:4", "v5e:axb", "4x4", "v5e 4x4"]
)
def test_run_names_the_known_topologies(capsys, arguments, name):
  said = _complaint(capsys, arguments(name))
  assert "--topology must be one of v5e, v5p, v6e" in said
  assert repr(name) in said


@needs_libtpu
def test_run_refuses_a_slice_that_is_not_built(capsys, arguments):
  assert "v5e:3x3x3" in _complaint(capsys, arguments("v5e:3x3x3"))


def test_run_without_libtpu_names_the_extra(capsys, arguments, monkeypatch):
  monkeypatch.setattr(footprint.importlib.util, "find_spec", lambda name: None)
  assert "--extra plan" in _complaint(capsys, arguments())


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"rollout__group_size": 1}, "config.rollout.group_size"),
    ({"rollout__slotz": 1}, "did you mean config.rollout.slots"),
    ({"model__path": "/nowhere/mine"}, "no checkpoint at '/nowhere/mine'"),
  ],
)
def test_run_refuses_mistakes_of_the_configuration(
  capsys, arguments, changes, said, monkeypatch
):
  # The slice is not looked at before the configuration is right.
  nothing = footprint.Topology("v5e:2x2", [], 0)
  monkeypatch.setattr(footprint, "topology", lambda name: nothing)
  assert said in _complaint(capsys, arguments(**changes))


def test_run_needs_a_topology(capsys, arguments):
  argv = [x for x in arguments() if not x.startswith("--topology")]
  assert "--topology is required" in _complaint(capsys, argv)
  assert "--topology" in _complaint(capsys, [*argv, "--topology"])


def test_run_prints_its_help(capsys):
  plan.run(["toolrl-plan", "--help"])
  assert "--topology=v5e:4x4" in capsys.readouterr().out


def test_a_terminal_shows_which_program_compiles(monkeypatch):
  lowered = jax.jit(lambda x: x).lower(1.0)
  programs = [
    lowering.Program(name, lowered, 0) for name in ("update", "decode")
  ]
  master, slave = os.openpty()
  termios.tcsetwinsize(slave, (24, 80))
  shown = ""
  with open(slave, "w") as terminal:
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(plan._named_while_compiled(programs)) == programs
    terminal.flush()
    # What was written comes through the terminal piece by piece.
    while select.select([master], [], [], 5.0)[0]:
      shown += os.read(master, 10_000).decode(errors="replace")
      if "compiling decode:  50%" in shown:
        break
  os.close(master)
  assert shown.index("compiling update:   0%") < shown.index(
    "compiling decode:  50%"
  )


@needs_libtpu
@pytest.mark.parametrize(
  ("mesh", "said"),
  [
    ({"mesh__tensor": 8, "mesh__fsdp": 1}, "must equal the number of devices"),
    ({"mesh__tensor": 8, "mesh__fsdp": 2}, "must divide the model's 4 heads"),
  ],
)
def test_run_refuses_a_mesh_that_does_not_fit(capsys, arguments, mesh, said):
  assert said in _complaint(capsys, arguments("v5e:4x4", **mesh))


def test_model_shape_takes_a_checkpoint_that_is_not_there_by_its_name():
  config = common.get_config()
  config.model.path = "/data/Qwen2.5-3B-Instruct/"
  name, decoder_config = plan.model_shape(config)
  assert name == "qwen2.5-3b"
  assert (decoder_config.num_layers, decoder_config.width) == (36, 2048)


def test_model_shape_reads_a_checkpoint():
  config = common.get_config()
  config.model.path = "bundled:tiny"
  assert plan.model_shape(config)[1].num_layers == 4


def test_update_block_counts_the_micro_steps_of_a_step():
  mesh = plan.sharding.make_mesh(1, 4, 1, jax.devices()[:4])
  options = plan.parts.update_options(common.get_config())
  sizes = lowering.Sizes(10, 32, 16, 2, 2, 4)
  describe = lambda micro_groups: lowering.update_block(
    sizes, options=options._replace(micro_groups=micro_groups), mesh=mesh
  )
  block, num_blocks = describe(1)
  assert num_blocks == 3
  assert block.groups.prompt_ids.shape == (4, 1, 32)
  assert block.packing is None
  whole, num_blocks = describe(0)
  assert num_blocks == 1
  # Sizes of blocks are rounded up, so that few are compiled.
  assert whole.groups.completion_ids.shape[1] in (3, 4)


def test_table_and_json_say_the_same():
  parts = flops.GroupFlops({"q_proj": 3 * 10**12}, 10**12, 10**12)
  made = plan.Plan(
    topology=footprint.Topology("v5e:2x2", [None] * 4, 16 * 2**30),
    mesh={"data": 1, "fsdp": 4, "tensor": 1},
    model="tiny",
    num_params=2_000_000_000,
    sizes=lowering.Sizes(8, 128, 64, 4, 4, 8),
    num_blocks=2,
    footprints=[
      footprint.Footprint(
        "update", 2**30, 0, 2**30, 2**29, 0, 2**28, 7 * 2**28, True, 3.2
      ),
      footprint.Footprint(
        "decode", 0, 0, 0, 20 * 2**30, 0, 0, 20 * 2**30, False, 1.0
      ),
    ],
    layouts=[
      plan.LayoutFlops("shared", parts, 1.001),
      plan.LayoutFlops("repeated", parts._replace(attention=6 * 10**12), 1.002),
    ],
  )
  table = plan.as_table(made).splitlines()
  rows = {line.split()[0]: line.split()[1:] for line in table if line}
  assert rows["update"] == [
    "1.00", "0.00", "0.50", "0.00", "0.25", "1.75", "yes", "3", "s",
  ]  # fmt: skip
  assert rows["decode"][-3:] == ["NO", "1", "s"]
  assert rows["shared"][-1] == "0.500"
  assert rows["repeated"] == ["3.0", "6.0", "1.0", "10.0", "1.0020"]
  mapping = json.loads(json.dumps(plan.as_json(made)))
  assert mapping["is_fit"] is False
  assert mapping["programs"][0]["total"] == 7 * 2**28
  assert mapping["shared_over_repeated"] == 0.5
  assert mapping["group_flops"]["shared"]["total"] == 5 * 10**12


@needs_libtpu
def test_run_compiles_for_a_slice(capsys, arguments):
  argv = [*arguments(loss__micro_groups=1, selection__keep=2), "--json"]
  plan.run(argv)
  made = json.loads(capsys.readouterr().out)
  assert made["chips"] == 4
  assert made["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1}
  assert made["micro_steps"] == 2
  assert made["is_fit"] is True
  names = [program["name"] for program in made["programs"]]
  assert names == ["update micro-step", "update apply", "prefill", "decode"]
  for program in made["programs"]:
    assert program["arguments"] > 0
    assert program["total"] < 2**30
  # Parameters and both moments, a quarter on each chip; small arrays fill
  # whole tiles of memory there.
  assert made["programs"][1]["donated"] >= 3 * made["num_params"]


@needs_libtpu
def test_measure_says_what_a_program_needs():
  slice_ = footprint.topology("v5e:1x1")
  where = jax.sharding.SingleDeviceSharding(slice_.devices[0])

  def need(num_rows):
    shape = jax.ShapeDtypeStruct((num_rows, 2**18), "float32", sharding=where)
    lowered = jax.jit(lambda x: x + 1.0, donate_argnums=0).lower(shape)
    return footprint.measure(
      lowering.Program("sum", lowered, 2**20), slice_.memory
    )

  small = need(1024)
  assert small.is_fit
  assert (small.arguments, small.donated, small.outputs) == (2**30, 2**30, 0)
  assert small.total >= 2**30 + 2**20
  # 20 GiB: the compiler refuses, and its message gives the number.
  large = need(20 * 1024)
  assert not large.is_fit
  assert large.total >= 20 * 2**30


def test_a_step_is_bounded_by_hand():
  config = presets.PRESETS["qwen2.5-3b"]
  sizes = lowering.Sizes(16, 2048, 1024, 4, 8, 16)
  chip = step_bound.Chip(16, 100e12, 1e12)
  bound = step_bound.step_bound(
    config, sizes, groups_per_step=32, epochs_per_batch=2,
    layouts=("shared", "repeated"), chip=chip, num_chips=16, num_engines=4,
    engine_bytes=2 * 10**9, utilisation=0.5,
  )  # fmt: skip
  assert bound.generated_tokens == 32 * 8 * 1024
  assert bound.updated_tokens == 2 * 32 * 4 * (2048 + 1024)
  # 8 groups an engine, 64 rows in 16 slots: 4 rounds of 1024 iterations.
  assert bound.decode_bytes == 4 * 1024 * 2e9
  update = flops.group_update(
    config, prompt_tokens=2048, completion_tokens=1024, num_kept=4,
    layout="repeated",
  ).total  # fmt: skip
  assert bound.update_secs == pytest.approx(64 * update / 16 / 100e12)
  rollout = flops.group_update(
    config, prompt_tokens=2048, completion_tokens=1024, num_kept=8,
    layout="shared",
  ).total  # fmt: skip
  assert bound.rollout_flops == pytest.approx(32 * rollout / 3)
  assert bound.rollout_secs == pytest.approx(
    max(32 * rollout / 3 / 4 / 100e12, 4096 * 2e9 / 1e12)
  )
  assert bound.assumed_secs == pytest.approx(
    2 * (bound.rollout_secs + bound.update_secs)
  )


def test_run_plans_for_the_local_devices(capsys, arguments):
  plan.run([*arguments("local", loss__micro_groups=1), "--json"])
  made = json.loads(capsys.readouterr().out)
  assert made["topology"] == "local" and made["chips"] == len(jax.devices())
  assert made["is_fit"] and made["step"] is None and made["changes"] is None
  names = [program["name"] for program in made["programs"]]
  assert names[-2:] == ["prefill", "decode"]
  held = made["held"]
  # Two moments in the parameters' dtype, and a count.
  assert held["optimizer"] >= 2 * held["parameters"] > 0
  assert held["engine"] > 0 and held["keys and values"] > 0


def test_try_finds_the_nearest_change_that_fits(capsys, arguments, monkeypatch):
  argv = arguments(
    "local",
    loss__micro_groups=0,
    model__remat="none",
    sampler__prompts_per_step=8 * len(jax.devices()),
  )
  plan.run([*argv, "--json"])
  need = json.loads(capsys.readouterr().out)["programs"][0]["total"]
  local = footprint.topology("local")
  small = local._replace(memory=need + footprint._RESERVED - 1)
  monkeypatch.setattr(footprint, "topology", lambda name: small)
  plan.run([*argv, "--json"])
  assert not json.loads(capsys.readouterr().out)["is_fit"]
  plan.run([*argv, "--json", "--try"])
  made = json.loads(capsys.readouterr().out)
  assert made["is_fit"]
  assert made["changes"] == ["--config.loss.micro_groups=1"]
  plan.run([*argv, "--try"])
  assert "fits with --config.loss.micro_groups=1" in capsys.readouterr().out
  tiny = local._replace(memory=footprint._RESERVED + 1)
  monkeypatch.setattr(footprint, "topology", lambda name: tiny)
  plan.run([*argv, "--json", "--try"])
  made = json.loads(capsys.readouterr().out)
  assert not made["is_fit"] and made["changes"] is None


@pytest.mark.parametrize("share", ["0", "1.5", "half"])
def test_run_refuses_a_share_that_is_none(capsys, arguments, share):
  argv = [*arguments("local"), f"--utilisation={share}"]
  assert "utilisation" in _complaint(capsys, argv)
