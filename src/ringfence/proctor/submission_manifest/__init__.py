"""The submission manifest: what somebody hands in with an agent, content-addressed, and whether an answer is in it.

``document`` makes, reads and compares manifests; ``reading`` reads hostile trees once, for digests and for the search;
``known_answers`` says which texts give a task's answer away; ``search`` finds them; ``binding`` ties it to a run.
"""
