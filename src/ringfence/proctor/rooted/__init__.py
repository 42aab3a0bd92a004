"""Proctored runs in the root of an image (ADR 0085): what agent and grader have, and what of a layer is graded."""
