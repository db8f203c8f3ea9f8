"""Configuration: what users set, in files, dicts and attributes.

reader.py     files and dicts of sections
schema.py     what sections and keys there are, and which of them nobody reads
settings.py   how the classes of Context declare their settings
checks.py     checks of arguments, in MindSpore Lite's words; sections.py: of sections in a dict
"""
