from engine.testing.fixtures import null_backend, plugin_folder

__all__ = ["null_backend", "plugin_folder"]
