"""``/mcp``: the Model Context Protocol over streamable HTTP. Needs the extra ``mcp`` when it is used."""
