"""The process that leads all sandboxes of a template, and what it has."""
