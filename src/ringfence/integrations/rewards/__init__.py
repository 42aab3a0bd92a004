"""Rewards for programs of a model: code and tests in, a score and reasons out, over a pool of sandboxes.

>>> with Rewards() as rewards:
...     rewards.score("def double(n): return 2 * n", "assert double(21) == 42").score
1.0
"""

from ringfence.integrations.rewards.grading import Reward, Rewards, code_of

__all__ = ["Reward", "Rewards", "code_of"]
