// What kinds of tensors modules have. A key asks for it with each module that is an argument, and there are thousands.
#pragma once

#include <Python.h>

#include <new>
#include <unordered_set>
#include <utility>

class Kinds {
 public:
  Kinds() = default;
  Kinds(const Kinds &) = delete;
  Kinds &operator=(const Kinds &) = delete;
  ~Kinds() {
    for (PyObject *one : {modes_, found_, dtype_, device_, grad_}) Py_XDECREF(one);
    for (PyObject *name : {training_name_, dtype_name_, device_name_, grad_name_, values_name_}) Py_XDECREF(name);
    for (PyObject *name : tensor_names_) Py_XDECREF(name);
    Py_XDECREF(modules_name_);
  }

  bool start() {
    return (modes_ = PySet_New(nullptr)) && (found_ = PySet_New(nullptr)) && name("training", &training_name_) &&
           name("dtype", &dtype_name_) && name("device", &device_name_) && name("requires_grad", &grad_name_) &&
           name("values", &values_name_) && name("_parameters", &tensor_names_[0]) &&
           name("_buffers", &tensor_names_[1]) && name("_modules", &modules_name_);
  }

  // Modules, and what hangs below them; todo is a list that gets longer.
  bool walk(PyObject *todo) {
    for (Py_ssize_t i = 0; i < PyList_Size(todo); i++) {
      PyObject *module = PyList_GetItem(todo, i);
      if (module == Py_None || !seen_.insert(module).second) continue;
      if (!mode(module)) return false;
      for (PyObject *name : tensor_names_) {
        PyObject *tensors = values(module, name);
        const bool ok = tensors && add(tensors);
        Py_XDECREF(tensors);
        if (!ok) return false;
      }
      PyObject *below = values(module, modules_name_);
      const bool ok = below && PyList_SetSlice(todo, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, below) == 0;
      Py_XDECREF(below);
      if (!ok) return false;
    }
    return true;
  }

  PyObject *result() const { return PyTuple_Pack(2, modes_, found_); }

 private:
  static bool name(const char *text, PyObject **out) { return (*out = PyUnicode_InternFromString(text)) != nullptr; }

  // A new reference. From the instance's own __dict__ where it is there: a module's way of looking is a long one.
  static PyObject *attribute(PyObject *object, PyObject *name) {
    PyObject *own = PyObject_GenericGetDict(object, nullptr);
    PyObject *found = own ? PyDict_GetItemWithError(own, name) : nullptr;
    Py_XINCREF(found);
    Py_XDECREF(own);
    if (found) return found;
    PyErr_Clear();
    return PyObject_GetAttr(object, name);
  }

  bool mode(PyObject *module) {
    PyObject *training = attribute(module, training_name_);
    const bool ok = training && (training == last_mode_ || PySet_Add(modes_, training) == 0);
    if (ok && PyBool_Check(training)) last_mode_ = training;  // which lives for ever
    Py_XDECREF(training);
    return ok;
  }

  // A list of what a module has in one of its dicts.
  PyObject *values(PyObject *module, PyObject *name) {
    PyObject *all = attribute(module, name);
    if (!all) return nullptr;
    PyObject *list = nullptr;
    if (PyDict_Check(all)) {
      list = PyDict_Values(all);
    } else {  // a scripted module's
      const int some = PyObject_IsTrue(all);
      PyObject *found = some > 0 ? PyObject_CallMethodObjArgs(all, values_name_, nullptr) : nullptr;
      list = found ? PySequence_List(found) : some == 0 ? PyList_New(0) : nullptr;
      Py_XDECREF(found);
    }
    Py_DECREF(all);
    return list;
  }

  bool add(PyObject *tensors) {
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
      PyObject *tensor = PyList_GetItem(tensors, i);
      if (tensor == Py_None) continue;
      PyObject *dtype = PyObject_GetAttr(tensor, dtype_name_);
      PyObject *device = dtype ? PyObject_GetAttr(tensor, device_name_) : nullptr;
      PyObject *grad = device ? PyObject_GetAttr(tensor, grad_name_) : nullptr;
      int same = grad && dtype == dtype_ && grad == grad_ ? PyObject_RichCompareBool(device, device_, Py_EQ) : 0;
      if (!grad) same = -1;
      if (same == 0) {
        PyObject *kind = PyTuple_Pack(3, dtype, device, grad);
        if (!kind || PySet_Add(found_, kind) != 0) same = -1;
        Py_XDECREF(kind);
        std::swap(dtype, dtype_);
        std::swap(device, device_);
        std::swap(grad, grad_);
      }
      Py_XDECREF(dtype);
      Py_XDECREF(device);
      Py_XDECREF(grad);
      if (same < 0) return false;
    }
    return true;
  }

  std::unordered_set<PyObject *> seen_;  // all of them live as long as the list
  PyObject *modes_ = nullptr, *found_ = nullptr;
  PyObject *dtype_ = nullptr, *device_ = nullptr, *grad_ = nullptr;  // of the last tensor
  PyObject *last_mode_ = nullptr;                                    // borrowed
  PyObject *training_name_ = nullptr, *dtype_name_ = nullptr, *device_name_ = nullptr, *grad_name_ = nullptr;
  PyObject *values_name_ = nullptr, *modules_name_ = nullptr;
  PyObject *tensor_names_[2] = {nullptr, nullptr};
};

inline PyObject *kinds(PyObject *, PyObject *modules) {
  PyObject *todo = PySequence_List(modules);
  if (!todo) return nullptr;
  PyObject *result = nullptr;
  try {
    Kinds kinds;
    if (kinds.start() && kinds.walk(todo)) result = kinds.result();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  Py_DECREF(todo);
  return result;
}
