"""The SDK. Its public names are those of the package ``kvstore``."""
