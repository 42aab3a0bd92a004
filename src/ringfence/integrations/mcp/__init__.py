"""A server of the Model Context Protocol over one sandbox: ``ringfence mcp``. Needs the extra ``mcp``."""
