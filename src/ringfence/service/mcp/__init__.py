"""``/mcp``: the Model Context Protocol over streamable HTTP. Needs the extra ``ringfence[mcp]`` when it is used."""
