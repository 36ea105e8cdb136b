"""Maps and fills the arenas of overmind-fs. Importing it changes nothing."""

from ._helper import live_mappings, map_arena, released_mappings, write_arena

__all__ = ["live_mappings", "map_arena", "released_mappings", "write_arena"]
