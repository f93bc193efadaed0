"""BF Runtime, the southbound protocol: protocol definitions, schema reader and asyncio client."""
