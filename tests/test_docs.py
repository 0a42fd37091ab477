"""The pages in docs/: each is in the index, and no link leads nowhere."""

import re

import pytest

pytestmark = pytest.mark.quick

_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def _text(path):
  """Returns a page without its code, which may hold brackets of its own."""
  return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def _anchors(path):
  """Returns the anchors that a Markdown viewer gives the headings."""
  titles = re.findall(r"^#+ (.+)$", _text(path), flags=re.MULTILINE)
  return {
    re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
  }


def test_every_page_stands_in_the_index(root_dir):
  docs = root_dir / "docs"
  listed = {name for name, _ in _LINK.findall(_text(docs / "README.md"))}
  pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
  assert pages - {"README.md"} <= listed


def test_every_link_leads_somewhere(root_dir):
  pages = [root_dir / "README.md", *(root_dir / "docs").rglob("*.md")]
  num_links = 0
  for page in pages:
    for name, anchor in _LINK.findall(_text(page)):
      target = page.parent / name if name else page
      assert target.exists(), f"{page}: {name}"
      if anchor and target.suffix == ".md":
        assert anchor in _anchors(target), f"{page}: {name}#{anchor}"
      num_links += 1
  assert num_links > 50


def test_every_picture_is_drawn_on_a_ground_of_its_own(root_dir):
  # Dark text on a page's own dark background cannot be read.
  for name in (
    "data_path",
    "group_layout",
    "streak_filter",
    "reward",
    "selection",
    "protocol",
  ):
    text = (root_dir / "docs" / "img" / f"{name}.svg").read_text()
    assert re.search(r'<rect x="0.5" y="0.5" [^>]*fill="#ffffff"', text), name
    sizes = [float(x) for x in re.findall(r'font-size="([\d.]+)"', text)]
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', text)[1])
    # At 600 pixels no letter is smaller than 11.
    assert min(sizes) * 600 / width >= 11, name
