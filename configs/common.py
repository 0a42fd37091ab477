r"""Every field of a run, with its default, unit and special values.

A recipe is a file beside this one whose `get_config()` starts from
`common.get_config()` and states only its differences. Any field can be
changed on the command line: `--config.rollout.temperature=0.7`.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the whole configuration tree with its defaults."""
  config = ml_collections.ConfigDict()

  # Seed of everything that is random: order, sampling, ties, initial weights.
  config.seed = 0
  # What is optimised: "grpo" | "sft".
  config.algorithm = "grpo"

  # ----- model -----
  config.model = model = ml_collections.ConfigDict()
  # Checkpoint: a Hugging Face folder, a .gguf file, or "bundled:tiny".
  # Empty: random weights of `preset` with the tokenizer in `tokenizer`.
  model.path = ""
  # Name in toolrl_jax/model/presets.py; only used when `path` is empty.
  model.preset = ""
  # Folder with tokenizer files. Empty: the one in `path`.
  model.tokenizer = ""
  # Dtype of the master parameters: "float32" | "bfloat16".
  model.param_dtype = "float32"
  # Dtype of the matrix products: "bfloat16" | "float32".
  model.compute_dtype = "bfloat16"
  # What the backward pass recomputes: "none" | "layer" | "dots".
  model.remat = "layer"

  # ----- data -----
  config.data = data = ml_collections.ConfigDict()
  # Training rows: a file, or "synthetic:N" for N generated examples.
  data.train_path = ""
  # Held-out rows, same forms. Empty: no held-out evaluation.
  data.eval_path = ""
  # "auto" (by suffix and fields) | "toolrl_parquet" | "toolrl_json" | "jsonl".
  data.format = "auto"
  # Prompts longer than this are over-long, in tokens.
  data.max_prompt_tokens = 2048
  # What happens to an over-long prompt: "drop" | "truncate_left" | "error".
  data.overlong = "drop"
  # What happens to a row that does not parse: "drop" | "error".
  data.bad_rows = "drop"
  # Bucket lengths for prompts, in tokens; the last must be at least
  # `max_prompt_tokens`. Empty: powers of two from 128.
  data.prompt_buckets = ()

  # ----- prompt -----
  config.prompt = prompt = ml_collections.ConfigDict()
  # "toolrl" (single user turn) | "native" (chat template) | "context".
  prompt.template = "toolrl"
  # Thinking in the history: "official" (the template's rule) | "keep" | "drop".
  prompt.thinking = "official"
  # Form of the completions that are asked for and scored: "toolrl" (one
  # <tool_call> block, a call a line, key `parameters`) | "native" (Qwen: a
  # block a call, key `arguments`) | "n1" (one block with a JSON list).
  prompt.completion = "toolrl"
  # Extra system text. Empty: none.
  prompt.system = ""

  # ----- sampler -----
  config.sampler = sampler = ml_collections.ConfigDict()
  # Prompts a step (B).
  sampler.prompts_per_step = 512
  # Passes over the training rows.
  sampler.num_epochs = 15
  # Steps at which to stop early. 0: the epochs alone decide.
  sampler.max_steps = 0
  # False takes the rows in the order of the file in every epoch.
  sampler.shuffle = True
  # A step takes prompts of similar length: less padding, but lengths that go
  # with kinds of rows make a step one-sided. False mixes all lengths.
  sampler.group_lengths = True
  # Streak filter k: a prompt solved in its last k visits is left out. 0: off.
  sampler.streak = 0
  # How a left-out prompt returns: "skip_epoch" | "permanent" | "probe".
  sampler.reentry = "skip_epoch"
  # With "probe": epochs between two visits of a left-out prompt.
  sampler.probe_every_epochs = 4

  # ----- rollout -----
  config.rollout = rollout = ml_collections.ConfigDict()
  # "jetstream" (the orchestrator's driver) | "inline" (a plain loop).
  rollout.server = "jetstream"
  # Rollouts a prompt (G).
  rollout.group_size = 4
  # Longest completion, in tokens, the stop token included.
  rollout.max_completion_tokens = 1024
  # Bucket lengths for completions, in tokens. Empty: powers of two from 64.
  rollout.completion_buckets = ()
  # Sampling temperature; 0 is greedy.
  rollout.temperature = 1.0
  # Nucleus: keep the smallest set of tokens with this probability. 1: off.
  rollout.top_p = 1.0
  # Keep the k most probable tokens. 0: off.
  rollout.top_k = 0
  # Decode rows (R) of one engine.
  rollout.slots = 64
  # Most tokens a decode call gives each row.
  rollout.decode_chunk = 16
  # A decode call ends early when this many rows became free. 0: never.
  rollout.refill = 4
  # "shared": a group's prompt is computed once. "repeated": once a rollout.
  rollout.layout = "shared"
  # Prompts that run in one prefill call. On one CPU core 2 or 4 rows save 20 to
  # 30 % at 128 tokens and little at 1024; not measured on accelerators.
  rollout.prefill_rows = 1
  # Tokens whose keys and values the host keeps for the next turn of a
  # conversation. 0: off. Training itself never reads them.
  rollout.prefix_store_tokens = 0
  # Decode from a copy of the weights in the compute dtype with the layers taken
  # apart: faster, for the memory of the copy.
  rollout.unstack_layers = True

  # ----- reward -----
  config.reward = reward = ml_collections.ConfigDict()
  # "toolrl" | "n1" | "looptool".
  reward.name = "toolrl"
  # Calls to gold calls: "optimal" (paper) | "greedy" (authors' code).
  reward.matching = "optimal"
  # "fixed" | "equal_max" | "two_stage" | "dynamic".
  reward.scale = "fixed"
  # "fine" (original) | "refined" | "intermediate" | "coarse".
  reward.granularity = "fine"
  # Length term: "none" | "fixed" | "dynamic".
  reward.length = "none"
  # Constants of the dynamic variants, and whether lengths are rounded to two
  # digits: "paper" | "authors".
  reward.schedule = "paper"
  # Steps of the whole run, for the paper's schedules.
  reward.schedule_steps = 105
  # Equality of values: "python" (1 == 1.0 == True) | "strict" (types count) |
  # "sets" (lists as sets, LoopTool).
  reward.equality = "python"
  # What gold without a call earns as correctness: "zero" (authors' code) |
  # "match" (full when no call is made, least when one is made).
  reward.no_call = "zero"
  # Newlines allowed after </think>: "one" | "one_or_two" (Qwen3's blank line).
  reward.newlines = "one"

  # ----- selection -----
  config.selection = selection = ml_collections.ConfigDict()
  # Rollouts kept a group (S). 0: all.
  selection.keep = 0
  # "max_variance" | "random" | "stratified".
  selection.rule = "max_variance"
  # Groups with equal rewards: "drop" (out of the divisor) | "keep" (advantage
  # 0, still counted by the divisor).
  selection.zero_variance = "keep"
  # Control experiment: permutes the rewards inside each group, so that they
  # say nothing of the rollouts.
  selection.shuffle_rewards = False

  # ----- advantage -----
  config.advantage = advantage = ml_collections.ConfigDict()
  # Mean and std over the "kept" rollouts or over "all".
  advantage.statistics = "kept"
  # "population" | "sample" | "none".
  advantage.std = "population"
  # Added to the std, in reward units.
  advantage.eps = 1e-6

  # ----- loss -----
  config.loss = loss = ml_collections.ConfigDict()
  # "shared": the prompt once a group. "repeated": once a rollout (baseline).
  loss.layout = "shared"
  # PPO clip range: the ratio is kept above 1 - clip_low ...
  loss.clip_low = 0.2
  # ... and below 1 + clip_high (0.28 in arXiv:2606.00135, "clip-higher").
  loss.clip_high = 0.2
  # Weight of the KL to the reference policy, per nat. 0: off.
  loss.kl_coef = 0.0
  # Where the KL stands: "loss" | "reward".
  loss.kl_in = "loss"
  # Weight of the entropy bonus, per nat. 0: off.
  loss.entropy_coef = 0.0
  # "token_mean" | "sequence_mean" | "fixed" (divide by max tokens).
  loss.aggregation = "token_mean"
  # Optimizer steps a batch and pass.
  loss.minibatches = 1
  # Passes over a batch.
  loss.epochs_per_batch = 1
  # Truncation of the rollout/trainer importance weight. 0: off.
  loss.importance_correction = 0.0
  # Tokens whose logits exist at one time.
  loss.logprob_chunk_tokens = 4096
  # Tokens of unequal groups stand one after another everywhere but in
  # attention, where that saves a tenth or more. False: padded everywhere.
  loss.packing = True
  # Most groups that a device computes at one time; gradients of the parts are
  # added up, equal to one big batch. Lower it when memory is short. 0: all.
  loss.micro_groups = 0

  # ----- optimizer (AdamW) -----
  config.optimizer = optimizer = ml_collections.ConfigDict()
  # Peak learning rate.
  optimizer.learning_rate = 1e-6
  # Linear warm-up, in optimizer steps.
  optimizer.warmup_steps = 0
  # After warm-up: "constant" | "cosine" | "linear" (to `final_scale`).
  optimizer.schedule = "constant"
  # Learning rate at the end, as a fraction of the peak.
  optimizer.final_scale = 0.0
  # Decay of AdamW's running mean of the gradient.
  optimizer.b1 = 0.9
  # Decay of its running mean of the squared gradient.
  optimizer.b2 = 0.999
  # Added to the root of the latter, in units of the gradient.
  optimizer.eps = 1e-8
  # Decoupled weight decay, per unit of learning rate. 0: off.
  optimizer.weight_decay = 0.0
  # Gradients are clipped to this global norm. 0: off.
  optimizer.clip_norm = 1.0

  # ----- mesh -----
  config.mesh = mesh = ml_collections.ConfigDict()
  # "pmap" (parameters replicated) | "sharded" (jit over a mesh).
  mesh.strategy = "sharded"
  # Simulated devices when there is no accelerator; 0 leaves JAX's default.
  mesh.cpu_devices = 0
  # Axis of "sharded" that copies the parameters and splits the groups. One of
  # the three axes may be -1 (what remains); "pmap" uses all devices.
  mesh.data = 1
  # Axis that splits the parameters, their moments and the groups.
  mesh.fsdp = -1
  # Axis that splits heads and hidden units; divides the model's heads.
  mesh.tensor = 1
  # Runs of several processes, one a host, each started by the same command:
  # "" (one process) | "auto" (JAX finds the others: TPU slices, Slurm) |
  # HOST:PORT of process 0.
  mesh.coordinator = ""
  # With HOST:PORT: processes of the run.
  mesh.num_processes = 1
  # With HOST:PORT: number of this process, from 0. -1: from the environment
  # variable JAX_PROCESS_ID.
  mesh.process_id = -1

  # ----- checkpoint -----
  config.checkpoint = checkpoint = ml_collections.ConfigDict()
  # Steps between two saves. 0: only at the end.
  checkpoint.every_steps = 15
  # Newest checkpoints kept.
  checkpoint.keep_last = 2
  # Best checkpoints by held-out exact-call rate kept.
  checkpoint.keep_best = 1
  # Write a Hugging Face folder at the end.
  checkpoint.export = True

  # ----- logging -----
  config.logging = logging = ml_collections.ConfigDict()
  # Rollouts written to samples.jsonl a step.
  logging.samples_per_step = 4
  # Also write TensorBoard events, in WORKDIR/tensorboard.
  logging.tensorboard = True
  # A warning when the share of parsable completions falls below this.
  logging.min_parse_frac = 0.2
  # A warning when the share of completions with a call falls below this
  # fraction of the share of gold with a call.
  logging.min_tool_call_frac = 0.2
  # Preflight: largest share of training rows whose gold scores no success.
  logging.max_bad_gold_frac = 0.1
  # "a:b" writes a profiler trace of steps a to b. Empty: off.
  logging.profile_steps = ""

  # ----- eval -----
  config.eval = evaluation = ml_collections.ConfigDict()
  # Steps between two held-out evaluations; also before and after. 0: only
  # before and after.
  evaluation.every_steps = 5
  # Held-out examples used. 0: all.
  evaluation.num_examples = 0
  # Also sample once at the rollout temperature, beside greedy.
  evaluation.sampled = True
  # Steps between two runs of the benchmarks below, with their first seed.
  # 0: never while training.
  evaluation.benchmarks_every_steps = 0

  # ----- benchmark: what toolrl-evaluate scores -----
  config.benchmark = benchmark = ml_collections.ConfigDict()
  # Any of "rows" (data.eval_path) | "bfcl" | "acebench" | "api_bank" |
  # "bamboogle" | "general" (lm-evaluation-harness, extra `eval`).
  benchmark.names = ()
  # Categories, as the benchmark names them. Empty: all.
  benchmark.categories = ()
  # Items a category, the first ones of each. 0: all.
  benchmark.max_items = 0
  # Seeds of the samples; every item is answered once under each.
  benchmark.seeds = (0,)
  # Extra system text: "default" (prompt.system) | "stronger" (ours with the
  # four groups of rules of arXiv:2606.00135) | a text file.
  benchmark.system = "default"
  # Form of the tool documents: "raw" (the benchmark's own, bare) |
  # "json_schema" (as {"type": "function", "function": ...}).
  benchmark.tool_docs = "json_schema"
  # Conversations open at one time. 0: four a decode row.
  benchmark.open = 0
  # Folder that holds ACEBench's data_en.
  benchmark.acebench_path = ""
  # Folder of API-Bank's JSON files.
  benchmark.api_bank_path = ""
  # Folder that holds Bamboogle's data.json.
  benchmark.bamboogle_path = ""
  # Folder of BFCL's own environment. Empty: in the user's cache folder.
  benchmark.bfcl_environment = ""
  # Who plays the user of ACEBench's agent_multi_turn: "none" (not run) |
  # "local" (the scored model plays both) | "openai" | "anthropic" (HTTP
  # services of these forms).
  benchmark.user = "none"
  # Address of that service.
  benchmark.user_url = ""
  # Its model.
  benchmark.user_model = ""
  # Name of the environment variable that holds its key.
  benchmark.user_key_variable = ""
  # Where Bamboogle's pages come from: "none" (closed book) | "bm25" (a corpus
  # in search_path) | "recorded" (a record in search_path) | "serper" (the web,
  # recorded in search_path where that is set).
  benchmark.search = "none"
  # File of the corpus or of the record. Empty: none.
  benchmark.search_path = ""
  # Name of the environment variable that holds the key of "serper".
  benchmark.search_key_variable = "SERPER_API_KEY"
  # Address of an OpenAI-compatible service whose model judges Bamboogle's
  # answers. Empty: none, matches of text stand in.
  benchmark.judge_url = ""
  # Its model.
  benchmark.judge_model = ""
  # Name of the environment variable that holds its key. Empty: no key.
  benchmark.judge_key_variable = ""
  # Tasks of lm-evaluation-harness, for "general"; `max_items` is then
  # documents a task.
  benchmark.tasks = ()
  # Folder of task files for local data. Empty: the harness's own tasks.
  benchmark.task_dir = ""
  # Worked examples in front of each question. -1: each task's own number.
  benchmark.num_fewshot = -1
  # Whether the harness's prompts pass the chat template.
  benchmark.is_chat = False

  # ----- sensitivity: the grid of toolrl-evaluate -----
  config.sensitivity = sensitivity = ml_collections.ConfigDict()
  # Values of prompt.template; with the two below all combinations are scored
  # and compared with that of the first values. Under "toolrl" answers are read
  # in its layout. Empty: the one value there. All three empty: no grid.
  sensitivity.templates = ()
  # Values of prompt.thinking, likewise.
  sensitivity.thinking = ()
  # Values of benchmark.system, likewise.
  sensitivity.systems = ()
  # A second checkpoint, scored in the same cells: does the gain of model.path
  # over it survive each of them? Empty: none.
  sensitivity.base = ""
  # A recipe that sets an unknown field fails at once, with the nearest name.
  return config.lock()
