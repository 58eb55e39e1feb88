"""Pages and pictures, all of them derived from a run's folder."""
