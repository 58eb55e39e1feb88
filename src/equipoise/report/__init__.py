"""Pages, tables and pictures, all derived from the folders of runs."""
