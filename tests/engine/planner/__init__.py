"""A package, so that what its tests share ends with them: else pytest takes the scope "package" for the session."""
