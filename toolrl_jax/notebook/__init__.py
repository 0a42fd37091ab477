"""What notebooks call: commands with progress, tables, figures."""

import warnings

# tqdm asks for ipywidgets, which nothing here needs.
warnings.filterwarnings("ignore", message="IProgress not found")
