"""Experiments that are run island by island and told as tables: their settings, their queue, their pages."""
