"""One file per recipe; `common.py` holds every field."""
