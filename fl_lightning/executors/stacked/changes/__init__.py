"""Looks at modules and their surroundings, to tell whether something has changed."""
