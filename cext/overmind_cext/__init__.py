"""Maps and fills the arenas of overmind-fs. Importing it changes nothing."""

from ._helper import agreement, live_mappings, map_arena, released_mappings, start_copier, write_arena

__all__ = ["agreement", "live_mappings", "map_arena", "released_mappings", "start_copier", "write_arena"]
