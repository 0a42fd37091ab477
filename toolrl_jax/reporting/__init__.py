"""What runs left in their folders, as figures and as one page."""
