"""The page: whole, escaped, bounded, and quiet in a browser."""

import base64
import functools
import hashlib
import html.parser
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

from configs import tiny
from toolrl_jax import report
from toolrl_jax.reporting import page, printable, runs, settings

HOSTILE = (
  "</script><script>document.title='owned'</script><img src=x onerror="
  "\"document.title='owned'\"> <b>&amp; {{ 7 * 7 }} \x00\x1b[31m \ud800 \u202e"
)


class _Page(html.parser.HTMLParser):
  """Tags with their attributes, scripts, and the text outside of them."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.scripts, self.text = [], [], ""
    self._script = None
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    if tag == "script":
      self._script = [dict(attributes), ""]

  def handle_endtag(self, tag):
    if tag == "script":
      self.scripts.append(self._script)
      self._script = None

  def handle_data(self, data):
    if self._script is None:
      self.text += f"{data}\n"
    else:
      self._script[1] += data


def _render(*folders):
  return page.render(
    runs.read_all(folders),
    default=settings.defaults(),
    recipe=settings.load(settings.RECIPES / "tiny.py"),
  )


def test_page_holds_figures_samples_and_configuration(write_run, tmp_path):
  text = _render(write_run(tmp_path / "one"))
  read = _Page(text)
  figures = {
    attributes["id"]: json.loads(script)
    for attributes, script in read.scripts
    if attributes.get("type") == "application/json"
  }
  assert figures["figure-success"]["data"][0]["name"] == "right rollouts"
  holders = {a["data-figure"] for _, a in read.tags if "data-figure" in a}
  assert holders == figures.keys()
  for words in (
    "names 1 of 1", "parameters 1.33 of 2", "values 2 of 3", "reward 2.33",
    "6 in 2 epochs", "50.0% → 75.0%", "No field differs.", "6 of 6 samples",
  ):  # fmt: skip
    assert words in read.text
  # Nothing is fetched from anywhere.
  sources = [a.get("src") or a.get("href") for _, a in read.tags]
  assert all(one is None or one.startswith("#") for one in sources)


def test_page_runs_its_own_two_scripts_and_no_other(write_run, tmp_path):
  config = {"rollout": {HOSTILE: HOSTILE}, HOSTILE: 1}
  folder = write_run(tmp_path / "<b>one", text=HOSTILE, example_id=HOSTILE)
  (folder / "config.json").write_text(json.dumps(config))
  with (folder / "metrics.jsonl").open("a") as file:
    for step in (8, 9):
      line = {"step": step, f"benchmark/{HOSTILE}": None if step == 9 else 1}
      file.write(json.dumps(line) + "\n")
  (folder / "scores.json").write_text(
    json.dumps(
      {
        "protocol": {"hash": HOSTILE},
        "model": HOSTILE,
        "benchmarks": {HOSTILE: {"summary": {HOSTILE: {"mean": 0.5}}}},
      }
    )
  )
  text = _render(folder, write_run(tmp_path / "two"))
  text.encode("utf-8")
  read = _Page(text)
  ours = [s for a, s in read.scripts if a.get("type") != "application/json"]
  policy = next(
    a["content"] for tag, a in read.tags
    if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
  )  # fmt: skip
  hashes = [
    base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for script in ours
  ]
  assert re.findall(r"'sha256-([^']+)'", policy) == hashes
  assert len(hashes) == 2
  assert {tag for tag, _ in read.tags}.isdisjoint({"img", "b", "iframe"})
  assert not any(
    name.startswith("on") for _, attributes in read.tags for name in attributes
  )
  # What is hostile is there to be read, and no character that steers.
  assert read.text.count("<script>document.title='owned'</script>") > 6
  assert "\\x00\\x1b[31m \\ud800 \\u202e" in read.text
  assert "{{ 7 * 7 }}" in read.text
  assert not re.search(
    "[\x00-\x08\x0b-\x1f\u202e]", "".join(read.text.split("\r"))
  )
  for attributes, script in read.scripts:
    if attributes.get("type") == "application/json":
      assert not re.search("[<>&]", script)


def test_page_shows_two_runs_side_by_side(write_run, tmp_path):
  config = tiny.get_config()
  config.rollout.group_size = 16
  read = _Page(
    _render(
      write_run(tmp_path / "one"), write_run(tmp_path / "two", config=config)
    )
  )
  figure = next(
    json.loads(script) for attributes, script in read.scripts
    if attributes.get("id") == "figure-success"
  )  # fmt: skip
  assert [trace["name"] for trace in figure["data"]] == ["one", "two"]
  assert read.text.count("6 of 6 samples") == 2
  cells = read.text[read.text.index("Configuration\n") :].split()
  at = cells.index("rollout.group_size")
  assert cells[at + 1 : at + 5] == ["8", "16", "8", "4"]
  marked = [a for tag, a in read.tags if a.get("class") == "differs"]
  # In the table of differences and in that of all fields.
  assert len(marked) == 2


def test_page_says_with_what_a_run_was_made(write_run, tmp_path):
  folder = write_run(tmp_path / "one")
  about = {
    "num_train_rows": 1440, "num_heldout_rows": 128, "num_params": 1049216,
    "num_devices": 8, "device_kind": "TPU v5 lite",
    "versions": {"jax": "1.2.3", "odd": 4},
  }  # fmt: skip
  (folder / "run.json").write_text(json.dumps(about))
  assert (
    "1,440 rows trained on, 128 held out, 1,049,216 parameters, 8 devices, "
    "TPU v5 lite, jax 1.2.3, odd 4." in _Page(_render(folder)).text
  )
  # Beside a run of an older version, which has no such file.
  text = _Page(_render(write_run(tmp_path / "older"), folder)).text
  assert "one: 1,440 rows trained on" in text and "older: " not in text
  for wrong in (
    {"num_train_rows": "x", "num_params": [1], "device_kind": 3},
    {"versions": [HOSTILE], "num_devices": True},
    {"device_kind": HOSTILE, "versions": {HOSTILE: HOSTILE}},
  ):
    (folder / "run.json").write_text(json.dumps(wrong))
    assert "owned" not in " ".join(
      str(a) for _, a in _Page(_render(folder)).tags
    )


def test_page_goes_on_with_damaged_files(write_run, tmp_path):
  folder = write_run(tmp_path / "one")
  (folder / "samples.jsonl").unlink()
  (folder / "metrics.jsonl").write_text('{"step": 1, "reward/total": N')
  read = _Page(_render(folder))
  assert "metrics.jsonl ends inside line 1" in read.text
  assert not any(a.get("data-figure") for _, a in read.tags)
  # A killed evaluation of another form.
  (folder / "scores.json").write_text(
    '{"benchmarks": {"x": [], "y": {"summary": 3}}}'
  )
  assert "metrics.jsonl ends" in _Page(_render(folder)).text


def test_page_shows_the_scores_of_an_evaluation(tmp_path):
  folder = tmp_path / "scores"
  folder.mkdir()
  by_seed = {"0": {"counts": {"call": 16}}}
  summary = {
    "call": {"mean": 0.28125, "std": 0.0442},
    "exact": {"mean": 0.5, "std": 0.0},
  }
  scores = {
    "model": "bundled:tiny",
    "protocol": {"hash": "abc"},
    "benchmarks": {
      "rows": {"headline": "exact", "summary": summary, "by_seed": by_seed}
    },
  }
  (folder / "scores.json").write_text(json.dumps(scores))
  read = _Page(_render(folder))
  assert "28.12 ± 4.42 (16 items)" in read.text
  assert read.text.index("exact") < read.text.index("call\n")
  assert ("strong", {}) in read.tags
  assert not any(a.get("class") == "grave" for _, a in read.tags)


def test_page_of_long_runs_stays_below_8_mb(write_run, tmp_path):
  folder = write_run(tmp_path / "long")
  row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[3])
  sample = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
  with (folder / "metrics.jsonl").open("w") as file:
    for step in range(1, 10_001):
      file.write(json.dumps(row | {"step": step, "reward/total": step}) + "\n")
  with (folder / "samples.jsonl").open("w") as file:
    for step in range(1, 2_001):
      size = 1_000_000 if step % 250 == 0 else 300
      fields = {"step": step, "completion": "<" * size, "gold": "&" * size}
      file.write(json.dumps(sample | fields) + "\n")
  text = _render(folder, write_run(tmp_path / "short"))
  assert len(text.encode()) < 8e6
  read = _Page(text)
  assert "24 of 2000 samples" in read.text
  assert "(997,000 more characters)" in read.text


@pytest.mark.parametrize(
  ("raw", "shown"),
  [
    ("a\n\tb", "a\n\tb"),
    ("é 漢 🙂", "é 漢 🙂"),
    ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
    ("\r", "\\x0d"),
    ("\ud800", "\\ud800"),
    ("a\u202eb", "a\\u202eb"),
  ],
)
def test_printable_escapes_what_steers(raw, shown):
  assert printable.text(raw) == shown


def test_printable_says_how_much_it_leaves_out():
  assert printable.cut("abcd", most=4) == "abcd"
  assert printable.cut("abcde", most=2) == "ab … (3 more characters)"


# Measures the page in a frame of a phone's width, and in it looks for what must
# not have run.
_FRAME = """<pre id="found"></pre><script>
const frame = document.createElement("iframe");
frame.src = "report.html";
frame.style = "border:0;width:390px;height:900px";
frame.onload = () => setTimeout(() => {
  const inside = frame.contentDocument;
  const wide = [...inside.querySelectorAll("main *")].filter((one) =>
    !one.closest(".scroll, pre, svg") &&
    one.getBoundingClientRect().right > 391);
  document.getElementById("found").textContent = JSON.stringify({
    title: inside.title, width: inside.documentElement.scrollWidth,
    charts: inside.querySelectorAll(".js-plotly-plot").length,
    wide: wide.map((one) => one.className),
  });
}, 1000);
document.body.append(frame);
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_page_fits_a_phone_and_runs_nothing_hostile(write_run, tmp_path):
  folders = [
    write_run(tmp_path / name, text=HOSTILE, example_id=HOSTILE)
    for name in ("one", "a-long-name-of-another-run-with-many-words-in-it")
  ]
  report.write(folders, out=tmp_path / "report.html")
  (tmp_path / "frame.html").write_text(_FRAME)
  handler = functools.partial(
    http.server.SimpleHTTPRequestHandler, directory=tmp_path
  )
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = subprocess.run(
      [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu",
        "--virtual-time-budget=60000", "--dump-dom",
        f"http://127.0.0.1:{server.server_port}/frame.html",
      ],
      capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    server.shutdown()
  found = json.loads(re.search('<pre id="found">(.*?)</pre>', done.stdout)[1])
  assert "owned" not in found["title"]
  # A scroll bar may take some of it.
  assert found["width"] <= 390
  assert found["wide"] == []
  assert found["charts"] >= 12
