"""Scores of a policy on rows it was not trained on."""
