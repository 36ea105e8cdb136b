// Gives modules their attributes. A module of torch has a dozen empty containers, which are two fifths of a pickle of it.
#pragma once

#include <Python.h>

// self is (names, kinds): a dict with every name that such a module has, in their order, and one with the class of which
// an empty object is to be made, for each name that has a container.
inline PyObject *new_attributes(PyObject *self) {
  PyObject *names = PyTuple_GetItem(self, 0), *kinds = PyTuple_GetItem(self, 1);
  PyObject *attributes = PyDict_Copy(names);
  if (!attributes) return nullptr;
  PyObject *name, *kind;
  PyObject *empty = PyTuple_New(0);
  Py_ssize_t at = 0;
  bool ok = empty != nullptr;
  while (ok && PyDict_Next(kinds, &at, &name, &kind)) {
    // Without __init__, which does nothing for an empty one and costs as much again.
    auto make = reinterpret_cast<newfunc>(PyType_GetSlot(reinterpret_cast<PyTypeObject *>(kind), Py_tp_new));
    PyObject *made = make(reinterpret_cast<PyTypeObject *>(kind), empty, nullptr);
    ok = made && PyDict_SetItem(attributes, name, made) == 0;
    Py_XDECREF(made);
  }
  Py_XDECREF(empty);
  if (!ok) Py_CLEAR(attributes);
  return attributes;
}

inline PyObject *fill_module(PyObject *self, PyObject *args) {
  PyObject *module, *own;
  if (!PyArg_ParseTuple(args, "OO:fill_module", &module, &own)) return nullptr;
  if (!PyDict_Check(own)) {
    PyErr_SetString(PyExc_TypeError, "the attributes of a module are a dict");
    return nullptr;
  }
  PyObject *attributes = new_attributes(self);
  if (!attributes) return nullptr;
  // What the module has beyond the template comes behind it, as in the original.
  const bool ok = PyDict_Update(attributes, own) == 0 && PyObject_GenericSetDict(module, attributes, nullptr) == 0;
  Py_DECREF(attributes);
  if (!ok) return nullptr;
  Py_RETURN_NONE;
}

inline PyMethodDef fill_module_method = {
    "fill_module", fill_module, METH_VARARGS,
    "fill_module(module, attributes, /)\n--\n\nSet the whole __dict__: what is not among the attributes is empty."};

inline bool is_maker(PyObject *kind) {
  return kind == reinterpret_cast<PyObject *>(&PyDict_Type) || kind == reinterpret_cast<PyObject *>(&PySet_Type) ||
         (PyType_Check(kind) && PyType_IsSubtype(reinterpret_cast<PyTypeObject *>(kind), &PyDict_Type));
}

inline PyObject *module_filler(PyObject *, PyObject *args) {
  PyObject *names, *kinds;
  if (!PyArg_ParseTuple(args, "O!O!:module_filler", &PyDict_Type, &names, &PyDict_Type, &kinds)) return nullptr;
  PyObject *name, *kind;
  for (Py_ssize_t at = 0; PyDict_Next(kinds, &at, &name, &kind);) {
    if (!is_maker(kind)) return PyErr_Format(PyExc_TypeError, "%R is neither a set nor a dict", kind);
  }
  PyObject *own_names = PyDict_Copy(names), *own_kinds = PyDict_Copy(kinds);
  PyObject *self = own_names && own_kinds ? PyTuple_Pack(2, own_names, own_kinds) : nullptr;
  Py_XDECREF(own_names);
  Py_XDECREF(own_kinds);
  PyObject *filler = self ? PyCFunction_NewEx(&fill_module_method, self, nullptr) : nullptr;
  Py_XDECREF(self);
  return filler;
}
