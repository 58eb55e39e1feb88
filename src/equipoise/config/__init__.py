"""From names to objects: registry, settings, recipes, defaults, and which choices fit together."""
