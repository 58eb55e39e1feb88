"""Adapters to the frameworks that people train with; each needs the package that it is named after."""
