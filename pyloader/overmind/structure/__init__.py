"""The object graph as a pickle: tensors and storages become indices, everything else is rebuilt as it was."""
