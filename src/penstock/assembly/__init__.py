"""A pipeline file becomes parts: the only place where a `type:` becomes a class."""
